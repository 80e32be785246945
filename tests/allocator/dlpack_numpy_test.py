#!/usr/bin/python3
"""NumPy takes sluice's tensors and gives its own, by DLPack's legacy capsules, without a copy.

    dlpack_numpy_test.py LIBRARY      skips where Debian's python3-numpy is missing
"""
import ctypes
import os
import sys
import unittest
import weakref

try:
    import numpy
except ImportError:
    print("sluice-skips 1: no NumPy here; tools/setup installs python3-numpy")
    sys.exit(1 if "numpy" in os.environ.get("SLUICE_REQUIRE", "").split(",") else 0)

probe = ctypes.CDLL(os.path.abspath(sys.argv.pop(1)))
probe.probe_export.restype = ctypes.c_void_p
probe.probe_export.argtypes = [ctypes.c_int64, ctypes.c_int64, ctypes.c_bool]
probe.probe_outstanding.restype = ctypes.c_size_t
probe.probe_import.restype = ctypes.c_char_p
probe.probe_import.argtypes = [ctypes.c_void_p, ctypes.POINTER(ctypes.c_bool)]
probe.probe_data.restype = ctypes.c_void_p

capsule_new = ctypes.pythonapi.PyCapsule_New
capsule_new.restype = ctypes.py_object
capsule_new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
capsule_pointer.restype = ctypes.c_void_p
capsule_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
capsule_rename = ctypes.pythonapi.PyCapsule_SetName
capsule_rename.argtypes = [ctypes.py_object, ctypes.c_char_p]


class Exported:
    def __init__(self, managed):
        self.managed = managed

    def __dlpack__(self, stream=None):
        return capsule_new(self.managed, b"dltensor", None)

    def __dlpack_device__(self):
        return (1, 0)


def give(array):
    """Hands the array to sluice: (taken, what sluice says)."""
    capsule = array.__dlpack__()
    taken = ctypes.c_bool()
    text = probe.probe_import(capsule_pointer(capsule, b"dltensor"), ctypes.byref(taken)).decode()
    if taken.value:
        capsule_rename(capsule, b"used_dltensor")  # NumPy's capsule no longer ends it
    return taken.value, text


class Numpy(unittest.TestCase):
    def test_it_sees_our_memory_and_gives_it_back(self):
        for writable in (False, True):
            before = probe.probe_outstanding()
            array = numpy.from_dlpack(Exported(probe.probe_export(3, 5, writable)))
            self.assertEqual((array.shape, array.dtype, array.strides), ((3, 5), numpy.float32, (20, 4)))
            self.assertEqual(array.ctypes.data % 256, 0)
            self.assertTrue((array == numpy.arange(15, dtype=numpy.float32).reshape(3, 5)).all())
            self.assertEqual(probe.probe_outstanding(), before + 1)
            part = array[1]
            del array
            self.assertEqual(probe.probe_outstanding(), before + 1)
            self.assertEqual(part[4], 9)
            del part
            self.assertEqual(probe.probe_outstanding(), before)

    def test_a_tensor_without_elements(self):
        array = numpy.from_dlpack(Exported(probe.probe_export(0, 5, False)))
        self.assertEqual(array.shape, (0, 5))

    def test_we_see_its_memory_and_give_it_back(self):
        array = numpy.arange(60, dtype=numpy.float64).reshape(6, 10)
        for view, text in ((array, "float64[6,10] by 10 1"), (array.T, "float64[10,6] by 1 10"),
                           (array[1::2, ::3], "float64[3,4] by 20 3"), (array[2:3, 4], "float64[1] by 1"),
                           (array[:1, :1].reshape(()), "float64[] by")):
            taken, said = give(view)
            self.assertTrue(taken, said)
            self.assertEqual(said, text)
            self.assertEqual(probe.probe_data(), view.ctypes.data)
        probe.probe_drop()

        class Noticed(numpy.ndarray):
            pass
        noticed = numpy.zeros(8).view(Noticed)
        gone = weakref.ref(noticed)
        self.assertTrue(give(noticed)[0])
        del noticed
        self.assertIsNotNone(gone())
        probe.probe_drop()
        self.assertIsNone(gone())

    def test_every_dtype_that_it_exports(self):
        for name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32",
                     "float64", "complex64", "complex128"):
            taken, said = give(numpy.zeros((2, 3), dtype=name))
            self.assertTrue(taken, said)
            self.assertEqual(said, name + "[2,3] by 3 1")
        probe.probe_drop()

    def test_what_we_cannot_hold_stays_with_it(self):
        array = numpy.arange(12, dtype=numpy.int32)
        wide = numpy.zeros((1,) * 9)
        for view, why in ((array[::-1], "not positive"), (wide, "rank 9"),
                          (numpy.lib.stride_tricks.as_strided(array, (4, 4), (8, 4)), "overlap")):
            taken, said = give(view)
            self.assertFalse(taken)
            self.assertIn(why, said)


if __name__ == "__main__":
    unittest.main(verbosity=2)
