import subprocess
import sys
from pathlib import Path

from treefold.data.generators import make_listops

TRAP = "from pathlib import Path; Path('executed').touch(); raise ImportError('a file of the working directory')"
WORKER = """
import sys
from pathlib import Path
from treefold.sweeps import local
if __name__ == "__main__":
    worker = local._start(Path(sys.argv[1]), Path(sys.argv[1]), None)
    worker.pipe.close()  # no run to do: the worker ends
    worker.process.join()
    assert worker.process.exitcode == 0, worker.process.exitcode
"""


def test_a_worker_executes_nothing_from_the_working_directory(tmp_path: Path) -> None:
    make_listops(20).save(tmp_path / "data")
    script = tmp_path / "bin" / "program.py"  # as the command `treefold` lies in a bin folder
    script.parent.mkdir()
    script.write_text(WORKER, encoding="utf-8")
    for name in ("struct", "pickle", "multiprocessing", "numpy"):
        (tmp_path / f"{name}.py").write_text(TRAP, encoding="utf-8")
    command = [sys.executable, str(script), str(tmp_path / "data")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "executed").exists()
