"""The data-parallel training job of a model: servers hold the parameters, each worker fetches all
of them in each step and sends back their gradients. The same nodes and edges as of
tools/graph/job_graph.cc, so the same program can run it."""
import dataclasses
import fnmatch

from graph_json import Graph
from model import TRAINABLE, Model, ModelError, Tensor, shown


@dataclasses.dataclass(frozen=True)
class Job:
    workers: int
    servers: int
    split: bool  # parameters above a server's share are cut into equal pieces
    compute_us: float  # of a worker's step
    frozen: tuple[str, ...]  # patterns of parameters that are not trained


def parameters_of(model: Model, frozen: tuple[str, ...] = ()) -> list[Tensor]:
    """What is trained, in the order of its first use."""
    read = dict.fromkeys(name for op in model.ops for name in op.inputs)
    found = [model.tensor(name) for name in read if model.weights.get(name)]
    found = [tensor for tensor in found if tensor.dtype in TRAINABLE]
    for pattern in frozen:
        left = [tensor for tensor in found if not fnmatch.fnmatchcase(tensor.name, pattern)]
        if len(left) == len(found):
            first = f"the first is {shown(found[0].name)}" if found else "none is"
            raise ModelError(f"--freeze {pattern} matches no parameter that is left; {first}")
        found = left
    if not found:
        raise ModelError("the model has no parameter to train; convert it with --as pipeline, or "
                         "freeze less")
    for tensor in found:
        if tensor.elements == 0:
            raise ModelError(f"the parameter {shown(tensor.name)} has no elements; "
                             f"leave it out with --freeze {tensor.name}")
    return found


def pieces_of(tensors: list[Tensor], servers: int) -> list[Tensor]:
    """Those above a server's share, by elements, in equal pieces."""
    share = -(-sum(tensor.elements for tensor in tensors) // servers)
    pieces = []
    for tensor in tensors:
        count = -(-tensor.elements // share)
        if count == 1:
            pieces.append(tensor)
            continue
        cuts = [tensor.elements * i // count for i in range(count + 1)]
        pieces += [Tensor(f"{tensor.name}/{i}", tensor.dtype, (cuts[i + 1] - cuts[i],))
                   for i in range(count)]
    return pieces


def servers_of(tensors: list[Tensor], servers: int) -> list[int]:
    """The server of each: the largest that is left goes to the one with the fewest bytes."""
    loads = [0] * servers
    chosen = [0] * len(tensors)
    for place in sorted(range(len(tensors)), key=lambda place: -tensors[place].bytes):
        chosen[place] = loads.index(min(loads))
        loads[chosen[place]] += tensors[place].bytes
    return chosen


def process_names(job: Job) -> list[str]:
    return [f"ps{s}" for s in range(job.servers)] + [f"worker{w}" for w in range(job.workers)]


def add_job(graph: Graph, model: Model, job: Job):
    tensors = parameters_of(model, job.frozen)
    if job.split:
        tensors = pieces_of(tensors, job.servers)
    servers = servers_of(tensors, job.servers)
    for s in range(job.servers):
        graph.node(f"ps{s}/publish", f"ps{s}", "publish", in_place=True)
    updates = [
        graph.node(f"ps{s}/update/{tensor.name}", f"ps{s}", "update", in_place=True,
                   touched_bytes=tensor.bytes * (job.workers + 2))
        for s, tensor in zip(servers, tensors)]
    for w in range(job.workers):
        graph.node(f"worker{w}/make", f"worker{w}", "make")
        graph.node(f"worker{w}/step", f"worker{w}", "step", in_place=True,
                   compute_us=job.compute_us)
    steps = [f"worker{w}/step" for w in range(job.workers)]
    for tensor, s, update in zip(tensors, servers, updates):
        graph.edge(f"next/{tensor.name}", update, [f"ps{s}/publish"], tensor, delay=1)
        graph.edge(f"weights/{tensor.name}", f"ps{s}/publish", [update, *steps], tensor)
    for w in range(job.workers):
        for tensor, update in zip(tensors, updates):
            graph.edge(f"made/{w}/{tensor.name}", f"worker{w}/make", [steps[w]], tensor)
            graph.edge(f"gradients/{w}/{tensor.name}", steps[w], [update], tensor)
