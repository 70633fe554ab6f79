"""The engine of servers that Ray starts, against a stand-in that records what is asked of Ray."""

import itertools
import sys
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace

import pytest

from e3rl.engines.servers import ray_actors, roll_call
from e3rl.engines.servers.client import ServerLostError
from e3rl.engines.servers.files import FileTransfer
from e3rl.engines.servers.ray_actors import Placement, PlacementError, ServerActor
from e3rl.engines.servers.supervised import ATTEMPTS, Look, SupervisedServer
from e3rl.engines.transformers import TransformersEngine
from e3rl.engines.vllm_ray import VLLMRayEngine
from e3rl.engines.vllm_settings import VLLMSettings
from engine_requests import by_place, many
from server_stand_in import StandIn, stand_ins


class RayError(Exception):
    """As Ray's errors, no error that Python has."""


def asked(answer):
    return SimpleNamespace(remote=lambda: answer)


@dataclass
class Actor:
    """What Ray gives for an actor; `address` None: it does not answer."""

    address: str | None
    options: dict
    launch: object = None
    trainer: str | None = None
    failures: int = 0
    said: str = ""
    stopped: bool = False
    killed: bool = False

    def remote(self, launch, trainer):
        self.launch, self.trainer = launch, trainer
        return self

    @property
    def look(self):
        return asked(self._look)

    @property
    def stop(self):
        return asked(lambda: setattr(self, "stopped", True))

    def _look(self):
        if self.address is None:
            raise RayError("the actor is being restarted")
        return Look(self.address, self.failures, self.said)


@dataclass
class Ray:
    """A cluster with so many CPUs, and where servers are that it starts."""

    addresses: list[str]
    cpus: float = 4.0
    began: list[tuple] = field(default_factory=list)
    groups: list[tuple] = field(default_factory=list)
    removed: int = 0
    actors: list[Actor] = field(default_factory=list)
    running: bool = False

    def init(self, address, **options):
        if address == "nowhere":
            raise ConnectionError("no GCS")
        self.began.append((address, options["include_dashboard"]))
        self.running = True

    def shutdown(self):
        self.running = False

    def place(self, bundles, strategy):
        self.groups.append((bundles, strategy))
        fits = sum(bundle.get("CPU", 0) for bundle in bundles) <= self.cpus
        return SimpleNamespace(wait=lambda seconds: fits)

    def remove(self, group):
        self.removed += 1

    def make(self, kind):
        assert kind is ServerActor
        return SimpleNamespace(options=self._make)

    def _make(self, **options):
        self.actors.append(Actor(self.addresses[len(self.actors) % len(self.addresses)], options))
        return self.actors[-1]

    def get(self, call, timeout):
        assert self.running  # Ray would start a cluster
        assert timeout >= 0
        return call()

    def install(self, monkeypatch) -> "Ray":
        names = ("ray", "ray.util", "ray.util.scheduling_strategies")
        ray, util, strategies = modules = [ModuleType(name) for name in names]
        ray.__spec__ = ModuleSpec("ray", None)
        ray.util, ray.exceptions = util, SimpleNamespace(RayError=RayError)
        ray.is_initialized = lambda: self.running
        ray.cluster_resources = lambda: {"CPU": self.cpus, "memory": 9.0}
        ray.available_resources = lambda: {"CPU": 1.0}
        ray.nodes = lambda: [{}, {}]
        ray.kill = lambda actor: setattr(actor, "killed", True)
        ray.init, ray.shutdown, ray.remote, ray.get = self.init, self.shutdown, self.make, self.get
        util.placement_group, util.remove_placement_group = self.place, self.remove
        util.get_node_ip_address = lambda: "10.0.0.7"
        strategies.PlacementGroupSchedulingStrategy = lambda group, placement_group_bundle_index: (
            placement_group_bundle_index
        )
        for name, module in zip(names, modules, strict=True):
            monkeypatch.setitem(sys.modules, name, module)
        return self


def engine_of(placement=None, **settings) -> VLLMRayEngine:
    given = {"progress": False, "wait_s": 0.0, **settings}
    return VLLMRayEngine(placement or Placement(servers=2), FileTransfer(), **given)


@pytest.fixture
def pair(policy):
    with stand_ins(policy, 2) as servers:
        yield servers


@pytest.fixture
def ray(pair, monkeypatch):
    monkeypatch.setattr(roll_call, "LOOK_S", 0.05)
    return Ray([server.url for server in pair]).install(monkeypatch)


def test_each_server_is_an_actor_on_a_bundle_and_all_of_it_ends_with_the_engine(
    policy, pair, ray, tmp_path, monkeypatch
):
    monkeypatch.setenv("E3RL_CACHE", str(tmp_path))
    placement = Placement(servers=2, cpus=1.5, strategy="SPREAD", address="auto")
    engine = engine_of(placement, settings=VLLMSettings(dtype="bfloat16"))
    engine.plan_for(100)
    engine.sync(policy, 0)
    assert ray.began == [("auto", False)]
    assert ray.groups == [([{"CPU": 1.5}, {"CPU": 1.5}], "SPREAD")]
    for bundle, actor in enumerate(ray.actors):
        assert actor.options == {
            **{"num_cpus": 1.5, "num_gpus": 0.0, "max_restarts": -1},
            "scheduling_strategy": bundle,
        }
        assert actor.trainer == "10.0.0.7"
        words = actor.launch.command("node7", 8001)
        assert words[words.index("--dtype") + 1] == "bfloat16"
        assert words[words.index("--served-model-name") + 1] == pair[0].model
        assert (tmp_path / words[words.index("--model") + 1] / "config.json").is_file()
        assert '"max_seq_length": 256' in actor.launch.files["config.json"]  # 100, rounded up
    rollouts = by_place(engine.generate(many(policy)))
    own = TransformersEngine(progress=False)
    own.sync(policy, 0)
    expected = by_place(own.generate(many(policy)))
    assert {p: r.tokens for p, r in rollouts.items()} == {p: r.tokens for p, r in expected.items()}
    assert min(server.calls["/inference/v1/generate"] for server in pair) > 0
    engine.close()
    engine.close()
    assert all(actor.stopped and actor.killed for actor in ray.actors)
    assert (ray.removed, ray.running) == (1, False)


def test_a_cluster_that_the_process_is_part_of_goes_on_after_the_engine(policy, ray):
    ray.running = True
    engine = engine_of()
    engine.sync(policy, 0)
    engine.close()
    assert ray.began == []
    assert ray.running


def test_a_server_that_was_started_anew_elsewhere_is_taken_up_at_the_next_sync(
    policy, pair, ray, caplog
):
    engine = engine_of()
    engine.sync(policy, 0)
    pair[1].kill()
    ray.actors[1].address = None  # its machine is gone; Ray looks for another one
    engine.sync(policy, 1)
    assert engine.metrics()["engine/servers"] == 1
    assert f"{pair[1].url} does not answer" in caplog.text
    new = StandIn(policy)
    try:
        ray.actors[1].address = new.url
        engine.sync(policy, 2)
        assert engine.metrics()["engine/servers"] == 2
        assert f"{new.url} is back" in caplog.text
        assert len(list(engine.generate(many(policy)))) == 20
        assert new.calls["/inference/v1/generate"] > 0
    finally:
        new.kill()
    engine.close()


def test_a_sync_waits_for_a_server_where_all_have_ended(policy, pair, ray):
    engine = engine_of(wait_s=30.0)
    engine.sync(policy, 0)
    for server in pair:
        server.kill()
    looks, late = itertools.count(), []

    def look():
        if next(looks) == 3:
            late.append(StandIn(policy))
        return Look(late[0].url if late else pair[1].url, 0, "")

    ray.actors[1]._look = look
    engine.sync(policy, 1)
    assert engine.metrics()["engine/servers"] == 1
    assert len(list(engine.generate(many(policy, 1)))) == 5
    engine.close()
    late[0].kill()


def test_servers_that_are_all_killed_are_an_error_with_their_last_words(policy, pair, ray):
    engine = engine_of()
    engine.sync(policy, 0)
    for server in pair:
        server.kill()
    with pytest.raises(ServerLostError, match="Ray starts another one"):
        list(engine.generate(many(policy)))
    ray.actors[0].said = "CUDA out of memory"
    with pytest.raises(ServerLostError, match=rf"{pair[0].url} said:\nCUDA out of memory"):
        engine.sync(policy, 1)
    engine.close()


def test_a_server_that_does_not_start_is_an_error_with_its_last_words(policy, pair, ray):
    engine = engine_of(wait_s=600.0)
    make = ray._make

    def broken(**options):
        actor = make(**options)
        actor.failures, actor.said = 1, "no kernel for this device"
        return actor

    ray._make = broken
    with pytest.raises(ServerLostError, match=r"ended before it answered:\nno kernel"):
        engine.sync(policy, 0)
    engine.close()
    assert all(actor.killed for actor in ray.actors)
    assert not ray.running


def test_servers_that_are_all_given_up_are_not_waited_for(policy, pair, ray):
    engine = engine_of(wait_s=600.0)
    engine.sync(policy, 0)
    for server, actor in zip(pair, ray.actors, strict=True):
        server.kill()
        actor.failures, actor.said = ATTEMPTS, "no memory is left"
    with pytest.raises(ServerLostError, match=r"ended before it answered:\nno memory"):
        engine.sync(policy, 1)
    engine.close()


def test_servers_beside_the_only_trainer_are_reached_by_nobody_else(monkeypatch, ray):
    hosts = []
    monkeypatch.setattr(SupervisedServer, "__init__", lambda self, *given: hosts.append(given[1]))
    for trainer in ("10.0.0.7", "10.0.0.8", None):
        ServerActor(None, trainer)
    assert hosts == ["127.0.0.1", "10.0.0.7", "10.0.0.7"]


def test_an_actor_that_cannot_be_made_is_an_error_that_says_what_it_needs(policy, pair, ray):
    ray.addresses = [None]
    engine = engine_of()
    with pytest.raises(ServerLostError, match=r"actor of server 0 .* must be installed .*: the"):
        engine.sync(policy, 0)
    engine.close()


def test_longer_rollouts_and_another_policy_start_servers_anew(policy, ray):
    engine = engine_of()
    engine.plan_for(100)
    engine.sync(policy, 0)
    engine.plan_for(90)
    engine.sync(policy, 1)
    assert len(ray.actors) == 2
    engine.plan_for(300)
    engine.sync(policy, 2)
    assert len(ray.actors) == 4
    assert [actor.killed for actor in ray.actors] == [True, True, False, False]
    engine.close()


def test_what_the_cluster_does_not_have_is_an_error_that_names_it(policy, ray):
    engine = engine_of(Placement(servers=3, cpus=2.0))
    message = (
        r"not placed 3 servers with 2 CPUs and 0 GPUs each \(PACK\) within 60 s\. The cluster has "
        r"4 CPUs and 0 GPUs on 2 machines, of which 1 CPUs and 0 GPUs are free"
    )
    with pytest.raises(PlacementError, match=message):
        engine.sync(policy, 0)
    engine.close()
    assert (ray.removed, ray.running, ray.actors) == (1, False, [])


def test_an_address_without_a_cluster_is_an_error(policy, ray):
    engine = engine_of(Placement(address="nowhere"))
    with pytest.raises(ConnectionError, match=r"engine\.placement\.address=nowhere: no Ray"):
        engine.sync(policy, 0)
    engine.close()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"servers": 0}, r"engine\.placement\.servers=0"),
        ({"cpus": -1.0}, r"engine\.placement\.cpus=-1"),
        ({"cpus": 0.0}, "give a server CPUs or GPUs"),
        ({"strategy": "pack"}, r"engine\.placement\.strategy='pack'"),
        ({"place_s": -1.0}, r"engine\.placement\.place_s=-1"),
    ],
)
def test_settings_that_make_no_sense_are_errors(settings, message):
    with pytest.raises(ValueError, match=message):
        Placement(**settings)


def test_a_server_gets_the_gpus_that_it_is_split_over(ray):
    assert Placement(gpus=2.0).bundle == {"CPU": 1.0, "GPU": 2.0}
    with pytest.raises(ValueError, match=r"gpus=1 and .*tensor_parallel_size=2"):
        engine_of(Placement(gpus=1.0), settings=VLLMSettings(tensor_parallel_size=2))
    engine_of(Placement(gpus=0.5))


def test_without_ray_the_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr(ray_actors, "find_spec", lambda package: None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install -e \"\.\[ray\]\""):
        engine_of()
