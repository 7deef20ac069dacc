"""All targets of the attack by their names."""

from typing import Final

from tests.attack import calls, commands, files, readers
from tests.attack.case import Target

TARGETS: Final[dict[str, Target]] = {
    target.name: target for module in (readers, files, calls, commands) for target in module.TARGETS
}
