"""The page of the explorer in a real browser: Debian's chromium, driven by selenium.

Expected colours, answers and numbers are computed by the model in Python, each subtree as a tree of its own.
"""

import json
import shutil
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.service import pages
from treefold import Tree
from treefold.analysis.explaining import occlusion

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
if CHROMIUM is None or DRIVER is None:
    pytest.skip(
        "THE PAGE IS NOT TESTED: expected chromium and chromedriver, got none; apt install chromium chromium-driver",
        allow_module_level=True,
    )
webdriver = pytest.importorskip("selenium.webdriver", reason="THE PAGE IS NOT TESTED: pip install 'treefold[browser]'")
from selenium.common.exceptions import StaleElementReferenceException  # noqa: E402
from selenium.webdriver.common.action_chains import ActionChains  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import WebDriverWait  # noqa: E402

FORMULA = "(or (and t f) (and (or f t) t))"  # nodes: t 0, f 1, and 2, f 3, t 4, or 5, t 6, and 7, or 8
TREE = Tree.parse(FORMULA)
BOMB = '<!DOCTYPE a [<!ENTITY b "bbbbbbbbbb"><!ENTITY c "&b;&b;&b;&b;&b;&b;&b;&b;&b;&b;">]><a>&c;</a>'


class Page:
    """The page in the browser."""

    def __init__(self, driver: Any, address: str) -> None:
        self.driver, self.address = driver, address
        self.may_refuse = False  # whether the test makes the service refuse something, which the console tells

    def open(self, *trees: str, **more: Any) -> "Page":
        """Open the address of some trees, and wait for the drawing."""
        self.driver.get("about:blank")
        self.driver.get(f"{self.address}#{urlencode({'tree': list(trees), **more}, doseq=True)}")
        self.wait_for_drawing()
        return self

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def all(self, selector: str) -> Any:
        return self.driver.find_elements("css selector", selector)

    def one(self, selector: str) -> Any:
        return self.driver.find_element("css selector", selector)

    def text(self, selector: str) -> str:
        return str(self.run("return document.querySelector(arguments[0]).textContent", selector))

    def wait(self, condition: Callable[[], Any]) -> Any:
        patience = WebDriverWait(self.driver, 30, 0.02, ignored_exceptions=[StaleElementReferenceException])
        return patience.until(lambda _: condition())

    def drawings(self) -> int:
        """Count the drawings since the page was loaded."""
        return int(self.run("return performance.getEntriesByName('drawing').length"))

    def wait_for_drawing(self, before: int = 0) -> None:
        self.wait(lambda: self.drawings() > before)

    def wait_for_details(self, number: int) -> None:
        self.wait(lambda: self.one("#node-body").get_attribute("data-node") == str(number))

    def then_drawn(self, action: Callable[[], Any]) -> None:
        before = self.drawings()
        action()
        self.wait_for_drawing(before)

    def type(self, text: str, box: int = 0) -> None:
        self.run("document.getElementById(arguments[0]).value = arguments[1]", f"tree-{box}", text)

    def draw(self, text: str) -> None:
        self.type(text)
        self.then_drawn(self.one("#draw").click)

    def node(self, number: int, panel: int = 0) -> Any:
        return self.all(f'.panel g.node[data-node="{number}"]')[panel]

    def fills(self, panel: int = 0) -> dict[int, str]:
        """Return the colours of the nodes, as the browser shows them."""
        script = """return [...document.querySelectorAll(".panel")[arguments[0]].querySelectorAll("g.node")].map(
            (group) => [Number(group.dataset.node), getComputedStyle(group.querySelector("rect")).fill])"""
        found = {}
        for number, colour in self.run(script, panel):
            parts = [int(part) for part in colour.removeprefix("rgb(").removesuffix(")").split(",")]
            found[number] = "#" + "".join(f"{part:02x}" for part in parts)
        return found

    def click_node(self, number: int, panel: int = 0) -> None:
        group = self.node(number, panel)
        ActionChains(self.driver).move_to_element(group).click().perform()
        self.wait(lambda: self.one("#edit").is_displayed())

    def press(self, *keys: str) -> None:
        ActionChains(self.driver).send_keys(*keys).perform()

    def focused(self) -> int | None:
        number = self.run("return document.activeElement.dataset.node ?? null")
        return None if number is None else int(number)

    def answer(self, panel: int = 0) -> str:
        return str(self.all(".answer")[panel].text)

    def emulate(self, *, wide: int = 1300, high: int = 900, phone: bool = False, dark: bool = False) -> None:
        size = {"width": wide, "height": high, "deviceScaleFactor": 1, "mobile": phone}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    found = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield found
    found.quit()


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with pages.explorer() as found:
        yield found


@pytest.fixture
def page(driver: Any, address: str) -> Iterator[Page]:
    """The page; after the test, its console has no errors, no dialog is open, and nothing came from another host."""
    found = Page(driver, address)
    found.emulate()
    yield found
    problems = [line["message"] for line in driver.get_log("browser") if line["level"] == "SEVERE"]
    refused = "Failed to load resource: the server responded with a status of 4"
    assert not [line for line in problems if not (found.may_refuse and refused in line)]
    for line in driver.get_log("performance"):
        event = json.loads(line["message"])["message"]
        if event["method"] == "Network.requestWillBeSent":
            url = event["params"]["request"]["url"]
            assert url.startswith((found.address, "data:", "about:")), url


# Looking


def test_the_page_opens_with_a_random_tree_of_the_model(page: Page) -> None:
    page.driver.get(page.address)
    page.wait_for_drawing()
    tree = Tree.parse(page.one("#tree-0").get_property("value"))
    assert tree in list(pages.formulas().forest)
    assert len(page.all("g.node")) == tree.size and page.answer() == pages.predicted("good", tree)[-1]
    assert page.run("return document.title") == "treefold explorer"
    page.then_drawn(page.one("#random").click)
    assert Tree.parse(page.one("#tree-0").get_property("value")) in list(pages.formulas().forest)


def test_a_typed_tree_has_the_colours_of_the_answers(page: Page) -> None:
    page.open("t", model="hasty")  # which is less sure of some than of others
    assert page.fills() == dict(enumerate(pages.colours("hasty", Tree.parse("t"))))
    page.draw(FORMULA)
    expected = pages.colours("hasty", TREE)
    assert page.fills() == dict(enumerate(expected)) and len(set(expected)) > 3
    assert page.answer() == pages.predicted("hasty", TREE)[-1]
    assert page.text(".probability") == f"{100 * pages.chances('hasty', TREE)[-1].max():.1f} %"
    assert page.text("#status").startswith(f"Answer: {page.answer()} with probability 0.")


def test_control_and_enter_draw_what_is_typed(page: Page) -> None:
    page.open("t")
    page.one("#tree-0").clear()
    page.one("#tree-0").send_keys("(and t t)")
    page.then_drawn(lambda: page.one("#tree-0").send_keys(Keys.CONTROL, Keys.ENTER))
    assert page.fills() == dict(enumerate(pages.colours("good", Tree.parse("(and t t)"))))


@pytest.mark.parametrize("number", [1, 5, 8])
def test_pointing_at_a_node_shows_the_distribution(page: Page, number: int) -> None:
    page.open(FORMULA)
    ActionChains(page.driver).move_to_element(page.node(number)).perform()
    page.wait_for_details(number)
    assert page.text("#node-body .label") == list(TREE.postorder())[number].label
    chances = pages.chances("good", TREE)[number]
    shown = [row.text.split("\n") for row in page.all(".bars li")]
    assert shown == [[name, f"{100 * chance:.1f} %"] for name, chance in zip(("no", "yes"), chances, strict=True)]
    track = page.run("return document.querySelector('.track').getBoundingClientRect().width")
    widths = page.run("return [...document.querySelectorAll('.bar')].map((bar) => bar.getBoundingClientRect().width)")
    assert widths == pytest.approx((chances * track).tolist(), abs=1)


def test_the_second_layer_shows_what_mattered_most(page: Page) -> None:
    page.open(FORMULA)
    before = page.fills()
    page.then_drawn(page.one('input[value="effects"]').click)
    assert page.fills() != before and "layer=effects" in page.driver.current_url
    most = occlusion(pages.models()["good"].saved, TREE, 1).effects[0]
    assert page.text("#effects li .share") == f"−{most.fall:.3f}"
    page.all("#effects li button")[0].click()
    assert page.focused() == most.node
    assert f"Without it, the probability of the answer falls by {most.fall:.3f}." in page.text("#node-body")


def test_subtrees_fold_and_unfold(page: Page) -> None:
    page.open(FORMULA)
    mark = page.node(7).find_element("css selector", ".fold path")
    page.then_drawn(
        lambda: ActionChains(page.driver).move_to_element(page.node(7)).move_to_element(mark).click().perform()
    )
    assert sorted(page.fills()) == [0, 1, 2, 7, 8] and page.text("g.rest text") == "+4"
    page.then_drawn(page.one("g.rest").click)
    assert sorted(page.fills()) == list(range(9)) and not page.all("g.rest")


def test_a_tree_of_two_thousand_nodes_is_folded_and_can_be_moved_zoomed_and_unfolded(page: Page) -> None:
    text = "t"
    for number in range(1000):
        text = f"(and {text} f)" if number % 2 else f"(or f {text})"
    page.open("t")
    page.draw(text)
    assert len(page.all("g.node")) <= 201 and page.text(".size") == "2,001 nodes"
    assert "cannot hold a tree of this length" in page.text("#notes") and len(page.driver.current_url) < 200

    def view() -> list[float]:
        return list(page.run("const m = document.querySelector('.stage svg > g').getCTM(); return [m.a, m.e, m.f]"))

    scale, x, y = view()
    page.one("#in").click()
    assert view()[0] == pytest.approx(1.25 * scale)
    page.one("#fit").click()
    scale, x, y = view()
    stage = page.one(".stage")
    bottom = ActionChains(page.driver).move_to_element_with_offset(stage, -200, 150)  # where nothing is drawn
    bottom.click_and_hold().move_by_offset(60, -30).release().perform()
    assert view() == pytest.approx([scale, x + 60, y - 30], abs=1) and not page.one("#edit").is_displayed()
    wheel = "arguments[0].dispatchEvent(new WheelEvent('wheel', {deltaY: -200, bubbles: true, cancelable: true}))"
    page.run(wheel, stage)
    assert view()[0] > scale
    hidden = int(page.text("g.rest text").removeprefix("+").replace(",", ""))
    page.then_drawn(
        lambda: page.run("arguments[0].dispatchEvent(new MouseEvent('click', {bubbles: true}))", page.one("g.rest"))
    )
    less = int(page.text("g.rest text").removeprefix("+").replace(",", ""))
    assert hidden - less >= 60 and len(page.all("g.node")) == 2001 - less


def test_two_runs_stand_side_by_side_and_their_first_differences_are_marked(page: Page) -> None:
    tree = Tree.parse(f"(or {FORMULA} {pages.disputed()})")
    page.open(str(tree), model="good")
    assert not page.one("#differs").is_displayed()
    page.then_drawn(page.one('#models input[value="hasty"]').click)
    assert [page.fills(panel) for panel in (0, 1)] == [
        dict(enumerate(pages.colours(name, tree))) for name in ("good", "hasty")
    ]
    expected = pages.first_differences(tree)
    marked = [[int(group.get_attribute("data-node")) for group in panel.find_elements("css selector", "g.differs")]
              for panel in page.all(".panel")]  # fmt: skip
    assert [sorted(numbers) for numbers in marked] == [expected, expected]
    page.all("#differs button")[0].click()
    assert page.focused() == expected[0] and len(page.all("#node-body .bars")) == 2
    assert pages.TRAINING in page.text("#notes")
    page.then_drawn(page.one('#models input[value="good"]').click)
    assert [name.text for name in page.all(".panel .name")] == ["hasty"]


def test_models_of_pairs_have_two_boxes(page: Page) -> None:
    page.open(FORMULA)
    assert not page.one("#tree-1").is_displayed()
    page.then_drawn(page.one('#models input[value="lrt"]').click)
    assert page.one("#tree-1").is_displayed() and not page.one('#models input[value="good"]').is_selected()
    page.type("(not a)")
    page.type("(or a b)", box=1)
    page.then_drawn(page.one("#draw").click)
    saved = pages.models()["lrt"]
    (expected,) = saved.answers([(Tree.parse("(not a)"), Tree.parse("(or a b)"))])
    assert page.answer() == expected["prediction"] and len(page.all("g.node")) == 5


def test_unknown_labels_are_said_to_be_unknown(page: Page) -> None:
    page.open("(and t maybe)")
    assert "The model does not know a label; it counts as <unk>: maybe" in page.text("#notes")
    dashes = page.run(
        "return [...document.querySelectorAll('g.node > rect')].map((rect) => getComputedStyle(rect).strokeDasharray)"
    )
    assert sum(dash != "none" for dash in dashes) == 1
    ActionChains(page.driver).move_to_element(page.node(1)).perform()
    assert "does not know this label" in page.text("#node-body")


# Changing


def replaced(tree: Tree, number: int, label: str) -> Tree:
    """Replace the label of one node, recursively."""
    count = -1

    def copy(node: Tree) -> Tree:
        nonlocal count
        children = [None if child is None else copy(child) for child in node.children]
        count += 1
        return Tree(label if count == number else node.label, children)

    return copy(tree)


def test_an_edit_changes_the_answer_at_once_and_undo_takes_it_back(page: Page) -> None:
    page.open(FORMULA)
    before = page.answer()
    changed = replaced(TREE, 6, "f")
    expected = pages.predicted("good", changed)[-1]
    assert expected != before == pages.predicted("good", TREE)[-1]  # else the test would show nothing
    page.click_node(6)
    assert page.one("#label").get_property("value") == "t"
    assert {option.get_attribute("value") for option in page.all("#labels option")} == {"and", "or", "t", "f"}
    page.one("#label").clear()
    page.one("#label").send_keys("f")
    page.then_drawn(page.one("#replace").click)
    assert page.answer() == expected and page.fills() == dict(enumerate(pages.colours("good", changed)))
    assert page.one("#tree-0").get_property("value") == str(changed)
    assert page.text("#status") == f"The answer changed from {before} to {expected}."
    page.then_drawn(page.one("#undo").click)
    assert page.answer() == before and page.one("#tree-0").get_property("value") == FORMULA
    assert not page.one("#undo").is_enabled()


@pytest.mark.parametrize(
    ("button", "number", "expected"),
    [
        ("#swap", 2, "(or (and (or f t) t) (and t f))"),
        ("#delete", 5, "(or (and t f) (and t))"),
        ("#delete", 0, "(or (and f) (and (or f t) t))"),
    ],
)
def test_nodes_are_swapped_and_deleted(page: Page, button: str, number: int, expected: str) -> None:
    page.open(FORMULA)
    page.click_node(number)
    page.then_drawn(page.one(button).click)
    assert page.one("#tree-0").get_property("value") == expected
    assert page.fills() == dict(enumerate(pages.colours("good", Tree.parse(expected))))


def test_the_root_can_be_neither_deleted_nor_swapped_and_a_leaf_not_folded(page: Page) -> None:
    page.open(FORMULA)
    page.click_node(8)
    assert [page.one(name).is_enabled() for name in ("#delete", "#swap", "#edit-fold", "#edit-undo")] == [
        False, False, True, False,
    ]  # fmt: skip
    page.one("#edit .close").click()
    page.click_node(6)  # the last child
    assert [page.one(name).is_enabled() for name in ("#delete", "#swap", "#edit-fold")] == [True, False, False]
    page.press(Keys.ESCAPE)
    assert not page.one("#edit").is_displayed() and page.drawings() == 1


# Examples


def test_examples_are_filtered_and_chosen(page: Page) -> None:
    page.open("t", model="hasty")
    page.wait(lambda: page.all("#example-list li"))
    data = pages.formulas()
    truth = {number: data.classes[data.targets[number]] for number in data.splits["test"].tolist()}
    wrong = [n for n, name in truth.items() if pages.predicted("hasty", data.forest[n])[-1] != name]
    assert wrong and f"{len(truth)} matches among {len(truth)} examples" in page.text("#found")
    page.one('input[value="wrong"]').click()
    page.wait(lambda: f"{len(wrong)} match" in page.text("#found"))
    assert [int(button.get_attribute("data-number")) for button in page.all("#example-list button")] == wrong
    page.then_drawn(page.all("#example-list button")[0].click)
    assert page.one("#tree-0").get_property("value") == str(data.forest[wrong[0]])
    assert page.answer() != truth[wrong[0]]
    page.one('input[value="any"]').click()
    page.one("#max_size").send_keys("3")
    small = [number for number in truth if data.forest[number].size <= 3]
    page.wait(lambda: f"{len(small)} match" in page.text("#found"))
    assert [int(button.get_attribute("data-number")) for button in page.all("#example-list button")] == small


# Hostile input


def test_hostile_labels_are_text(page: Page) -> None:
    script, image, long, hebrew = (
        "<script>alert(1)</script>",
        "<img src=x onerror=alert(2)>",
        "x" * 10_000,
        "\u202eשלום</svg>",
    )
    labels = [script, image, long, hebrew, "]]>&lt;", "\x00\x1b"]
    tree = Tree("and", [Tree(label) for label in labels])
    page.open("t")
    page.draw(str(tree))
    assert len(page.all("g.node")) == 7
    assert (
        page.run("return document.querySelectorAll('main script, main img, main style, main foreignObject').length")
        == 0
    )
    texts = page.run(
        "return [...document.querySelectorAll('g.node > text:first-of-type')].map((text) => text.textContent)"
    )
    assert any(text.startswith('"<script>alert') for text in texts) and max(map(len, texts)) <= 24
    for number, label in enumerate(labels):
        page.run("document.querySelector(`g.node[data-node='${arguments[0]}']`).focus()", number)
        page.wait_for_details(number)
        assert page.text("#node-body .label") == label
    assert page.run("return document.documentElement.scrollWidth <= innerWidth")
    page.run("document.getElementById('list').open = true")
    page.wait(lambda: page.all("#list li li"))
    assert script in page.text("#list")
    page.click_node(0)
    assert script in page.text("#edit-title") and page.one("#label").get_property("value") == script


def test_an_xml_bomb_is_refused_in_words_and_the_drawing_stays(page: Page) -> None:
    page.may_refuse = True
    page.open(FORMULA)
    page.one('#format option[value="xml"]').click()
    page.type(BOMB)
    page.one("#draw").click()
    page.wait(lambda: page.one("#problem").is_displayed())
    assert "expected" in page.text("#problem") and "entit" in page.text("#problem").lower()
    assert page.fills() == dict(enumerate(pages.colours("good", TREE)))
    page.type("<and><t/><f/></and>")
    page.then_drawn(page.one("#draw").click)
    assert not page.one("#problem").is_displayed()
    assert page.fills() == dict(enumerate(pages.colours("good", Tree.parse("(and t f)"))))


def test_a_typing_mistake_is_shown_with_its_place(page: Page) -> None:
    page.may_refuse = True
    page.open(FORMULA)
    page.type("(and t")
    page.one("#draw").click()
    page.wait(lambda: page.one("#problem").is_displayed())
    assert "line 1, column 7: expected ')'" in page.text("#problem")
    page.then_drawn(page.one('#models input[value="hasty"]').click)  # draws the last good tree, and keeps the text
    assert page.one("#tree-0").get_property("value") == "(and t" and len(page.all(".panel")) == 2


def test_after_a_bad_address_a_good_tree_can_be_typed(page: Page) -> None:
    page.may_refuse = True
    page.driver.get("about:blank")
    page.driver.get(f"{page.address}#tree=(and")
    page.wait(lambda: page.one("#problem").is_displayed())
    page.type("(and t f)")
    page.then_drawn(page.one('input[value="effects"]').click)
    assert len(page.all("g.node")) == 3 and not page.one("#problem").is_displayed()


# The address


def test_the_address_restores_everything(page: Page) -> None:
    text = '(and "two words & <more> #1 + 50%" (or t f))'
    page.open("t")
    page.draw(text)
    page.then_drawn(page.one('#models input[value="hasty"]').click)
    page.then_drawn(page.one('input[value="effects"]').click)
    address, drawings = (
        page.driver.current_url,
        [panel.get_attribute("outerHTML") for panel in page.all(".stage g.node")],
    )
    page.driver.get("about:blank")
    page.driver.get(address)
    page.wait_for_drawing()
    assert page.one("#tree-0").get_property("value") == text and page.one('input[value="effects"]').is_selected()
    assert [panel.get_attribute("outerHTML") for panel in page.all(".stage g.node")] == drawings
    assert [name.text for name in page.all(".panel .name")] == ["good", "hasty"]


def test_the_address_keeps_the_format_and_says_if_a_model_is_missing(page: Page) -> None:
    page.open("<and><t/><f/></and>", format="xml", model=["gone", "hasty"])
    assert page.one("#format").get_property("value") == "xml"
    assert [name.text for name in page.all(".panel .name")] == ["hasty"]
    page.wait(lambda: "no model of the name gone" in page.text("#notes"))


def test_another_address_in_the_same_window_is_drawn(page: Page) -> None:
    page.open(FORMULA)
    page.then_drawn(lambda: page.run("location.hash = '#tree=(or f f)&model=good'"))
    assert page.fills() == dict(enumerate(pages.colours("good", Tree.parse("(or f f)"))))


# For everybody


def test_the_keyboard_reaches_everything(page: Page) -> None:
    page.open(FORMULA)
    page.node(8).send_keys(Keys.ARROW_DOWN)  # the root, then its first child
    assert page.focused() == 2
    right, left, up, down = Keys.ARROW_RIGHT, Keys.ARROW_LEFT, Keys.ARROW_UP, Keys.ARROW_DOWN
    steps = [(right, 7), (right, 7), (down, 5), (down, 3), (right, 4), (left, 3), (up, 5), (up, 7)]
    for key, expected in steps:
        page.press(key)
        assert page.focused() == expected
        assert page.text("#node-body .label") == list(TREE.postorder())[expected].label
    outline = page.run("return getComputedStyle(document.activeElement.querySelector('rect')).strokeWidth")
    assert float(outline.removesuffix("px")) > 3
    page.then_drawn(lambda: page.press("f"))
    assert sorted(page.fills()) == [0, 1, 2, 7, 8]
    page.wait(lambda: page.focused() == 7)
    page.then_drawn(lambda: page.press("f"))
    page.wait(lambda: page.focused() == 7)
    page.press("e")
    assert page.one("#edit").is_displayed()
    page.then_drawn(lambda: page.press("or", Keys.ENTER))
    assert page.one("#tree-0").get_property("value") == str(replaced(TREE, 7, "or"))
    page.wait(lambda: page.focused() == 7)
    page.press(Keys.HOME)
    assert page.focused() == 8
    page.then_drawn(lambda: page.press("u"))
    assert page.one("#tree-0").get_property("value") == FORMULA
    page.press("?")
    assert page.one("#help").is_displayed()
    page.press(Keys.ESCAPE)
    assert not page.one("#help").is_displayed()


def test_the_tree_is_also_a_nested_list(page: Page) -> None:
    page.open(FORMULA)
    page.one("#list > summary").click()
    page.wait(lambda: len(page.all("#list li")) == 9)
    script = """return [...document.querySelectorAll("#list li")].map((item) => {
        let depth = -1;
        for (let above = item; above.id !== "list"; above = above.parentElement) depth += above.localName === "li";
        return [depth, item.querySelector("bdi").textContent.split(",")[0]];
    })"""
    answers = dict(enumerate(pages.predicted("good", TREE)))
    expected = []

    def visit(node: Tree, last: int, depth: int) -> None:
        expected.append([depth, f"{node.label}: {answers[last]}"])
        start = last - node.size
        for child in node.children:
            assert child is not None
            start += child.size
            visit(child, start, depth + 1)

    visit(TREE, 8, 0)
    assert page.run(script) == expected
    assert page.one("#status").get_attribute("aria-live") == "polite"
    names = page.run("return [...document.querySelectorAll('g.node')].map((group) => group.getAttribute('aria-label'))")
    assert all(names) and f"or: {answers[8]}, " in names[0]
    nameless = page.run("""return [...document.querySelectorAll('button, input, select, textarea')].filter((control) =>
        !(control.textContent.trim() || control.getAttribute('aria-label') || control.labels?.length)).map((c) => c.id)""")
    assert nameless == []


def test_a_phone_has_one_column_and_nothing_to_scroll_sideways(page: Page) -> None:
    page.emulate(wide=360, high=740, phone=True)
    page.open(f"(and {'y' * 300} {FORMULA})", model=["good", "hasty"])
    page.run("document.getElementById('list').open = true")
    assert page.run("return document.documentElement.scrollWidth") <= 360
    script = "return document.getElementById(arguments[0]).getBoundingClientRect().toJSON()"
    boxes = [page.run(script, part) for part in ("tree-form", "output", "details")]
    assert all(box["left"] >= 0 and box["right"] <= 360 for box in boxes)
    assert boxes[0]["bottom"] <= boxes[1]["top"] and boxes[1]["bottom"] <= boxes[2]["top"]
    page.run(
        "document.querySelector('g.node[data-node=\"3\"]').dispatchEvent(new MouseEvent('click', {bubbles: true}))"
    )
    box = page.one("#edit").rect
    assert box["x"] >= 0 and box["x"] + box["width"] <= 360


def test_dark_windows_have_a_dark_page_with_text_that_can_be_read(page: Page) -> None:
    page.open(FORMULA)
    light = page.run("return getComputedStyle(document.body).backgroundColor")
    page.emulate(dark=True)
    dark, ink = page.run("const style = getComputedStyle(document.body); return [style.backgroundColor, style.color]")

    def brightness(colour: str) -> float:
        return sum(map(int, colour.removeprefix("rgb(").removesuffix(")").split(","))) / 765

    assert brightness(light) > 0.9 and brightness(dark) < 0.15 and brightness(ink) > 0.8
    assert page.fills() == dict(enumerate(pages.colours("good", TREE)))  # answers keep their colours


def test_a_key_is_asked_for_and_kept_for_the_tab(driver: Any) -> None:
    with pages.explorer(api_key="sesame") as address:
        page = Page(driver, address)
        page.emulate()
        driver.get("about:blank")
        driver.get(f"{address}#tree=t")
        for key in ("wrong", "sesame"):
            page.wait(lambda: page.one("#key").is_displayed())
            page.one("#key-text").clear()
            page.one("#key-text").send_keys(key, Keys.ENTER)
        page.wait_for_drawing()
        assert page.fills() == dict(enumerate(pages.colours("good", Tree.parse("t"))))
        driver.refresh()
        page.wait_for_drawing()
        assert not page.one("#key").is_displayed()
        driver.get("about:blank")
        driver.get_log("browser")
