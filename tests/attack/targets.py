"""All targets of the attack by their names."""

from typing import Final

from tests.attack import calls, commands, files, objects, readers, service
from tests.attack.case import Target

TARGETS: Final[dict[str, Target]] = {
    target.name: target for module in (readers, files, objects, calls, commands, service) for target in module.TARGETS
}
