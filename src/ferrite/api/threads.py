"""How many inference workers to start when nobody said."""

import os
from collections.abc import Iterable
from pathlib import Path

_CPU_ROOT = Path("/sys/devices/system/cpu")
_CGROUP_LIMIT = Path("/sys/fs/cgroup/cpu.max")


def automatic_threads() -> int:
    """Return the number of inference workers for this process on this machine, at least one."""
    cpus = os.sched_getaffinity(0)
    return worker_count(
        usable_cpus=min(len(cpus), _quota(_CGROUP_LIMIT)), physical_cores=_physical_cores(cpus, _CPU_ROOT)
    )


def worker_count(*, usable_cpus: int, physical_cores: int) -> int:
    """Return one worker per physical core, one fewer where that would leave no CPU for HTTP."""
    workers = min(physical_cores, usable_cpus)
    return max(1, workers - 1 if workers == usable_cpus else workers)


def _physical_cores(cpus: Iterable[int], root: Path) -> int:
    """Count the cores behind the CPUs; a CPU whose topology is not shown counts as a core."""
    return len({_core(root / f"cpu{cpu}" / "topology", cpu) for cpu in cpus})


def _core(topology: Path, cpu: int) -> tuple[str, str]:
    try:
        package = (topology / "physical_package_id").read_text(encoding="ascii").strip()
        return package, (topology / "core_id").read_text(encoding="ascii").strip()
    except OSError:
        return "unknown", str(cpu)


def _quota(limit_file: Path) -> int:
    """Return the whole CPUs a control group allows (at least one), or a number above any machine."""
    try:
        quota, period = limit_file.read_text(encoding="ascii").split()
        return max(1, int(quota) // int(period))
    except (OSError, ValueError):
        return 1 << 20
