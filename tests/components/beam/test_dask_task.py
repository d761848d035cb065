import subprocess
import sys


def test_a_worker_sends_heartbeats_while_it_imports_beam() -> None:
    """Dask imports a task's module in the worker's event loop: Beam must wait for the task's own thread."""
    program = "import sys, components.beam.dask_task; sys.exit('apache_beam' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
