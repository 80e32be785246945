"""The document sluice.graph/1, in the order of fields in which `sluice graph make` writes it,
within the limits of transport/graph."""
from model import BITS, ModelError, Tensor, shown

# transport/graph/graph.h
MOST_PROCESSES = 4_096
MOST_NODES = 65_536
MOST_EDGES = 262_144
MOST_READERS = 1_048_576
MOST_CLOCKS = 1 << 26
MOST_NAME_BYTES = 255
# Of a shape: transport/base/tensor_descriptor.h.
MOST_EXTENTS = 8

_SMALLER = "convert a part of the model, or for fewer processes"


class Graph:
    def __init__(self, name: str):
        self._name = name
        self._processes: list[dict] = []
        self._nodes: list[dict] = []
        self._edges: list[dict] = []

    def process(self, name: str, host: str):
        self._processes.append({"name": name, "host": host})

    def node(self, name: str, process: str, op: str, in_place: bool = False, compute_us: float = 0,
             touched_bytes: int = 0) -> str:
        entry = {"name": name, "process": process, "op": op, "in_place": in_place,
                 "compute_us": compute_us, "touched_bytes": touched_bytes}
        self._nodes.append({field: value for field, value in entry.items() if value})
        return name

    def edge(self, name: str, maker: str, readers: list[str], tensor: Tensor, delay: int = 0):
        _check_tensor(tensor)
        entry = {"name": name, "from": maker, "to": readers, "dtype": tensor.dtype,
                 "shape": list(tensor.shape)}
        self._edges.append(entry | ({"delay": delay} if delay else {}))

    def document(self) -> dict:
        for parts, entries, most in (("processes", self._processes, MOST_PROCESSES),
                                     ("nodes", self._nodes, MOST_NODES),
                                     ("edges", self._edges, MOST_EDGES)):
            if len(entries) > most:
                raise ModelError(f"the graph would have {len(entries)} {parts}, and {most} is the "
                                 f"most of sluice.graph/1; {_SMALLER}")
            self._check_names(parts, entries)
        if len(self._nodes) * len(self._processes) > MOST_CLOCKS:
            raise ModelError(f"the graph would have {len(self._nodes)} nodes times "
                             f"{len(self._processes)} processes, and {MOST_CLOCKS} is the most of "
                             f"sluice.graph/1; {_SMALLER}")
        readers = sum(len(edge["to"]) for edge in self._edges)
        if readers > MOST_READERS:
            raise ModelError(f"the edges would have {readers} readers, and {MOST_READERS} is the "
                             f"most of sluice.graph/1; {_SMALLER}")
        return {"schema": "sluice.graph/1", "name": self._name, "processes": self._processes,
                "nodes": self._nodes, "edges": self._edges}

    @staticmethod
    def _check_names(parts: str, entries: list[dict]):
        seen = set()
        for entry in entries:
            name = entry["name"]
            size = len(name.encode("utf-8", "replace"))
            if size > MOST_NAME_BYTES:
                raise ModelError(f"{shown(name)}, one of the {parts}, would have a name of {size} "
                                 f"bytes, and {MOST_NAME_BYTES} is the most of sluice.graph/1; "
                                 "give it a shorter one in the model")
            if name in seen:
                raise ModelError(f"two {parts} would be named {shown(name)}; "
                                 "give each a name of its own in the model")
            seen.add(name)


def _check_tensor(tensor: Tensor):
    """An edge carries it: whole bytes, some of them, and not too many extents."""
    what = f"the tensor {shown(tensor.name)}"
    if tensor.bytes == 0:
        raise ModelError(f"{what} has the shape {list(tensor.shape)}, without elements; "
                         "choose larger values for --dim, or take it out of the model")
    if tensor.dtype not in BITS:
        raise ModelError(f"{what} has elements of {tensor.dtype}, which no edge can carry; "
                         "cast it to a type of whole bytes in the model")
    if len(tensor.shape) > MOST_EXTENTS:
        raise ModelError(f"{what} has {len(tensor.shape)} dimensions, and {MOST_EXTENTS} is the "
                         "most of sluice.graph/1; reshape it in the model")
    if tensor.bytes >= 1 << 63:
        raise ModelError(f"{what} would have {tensor.bytes} bytes, and 2^63 is too many; "
                         "choose smaller values for --dim")
