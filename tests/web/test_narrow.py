"""Lists in a narrow window: nothing is hidden, and whatever is out of sight is reached by scrolling its own box."""

import pytest

from web_support import NARROW, beside, browser, open_page
from http_support import engine, front, start
from test_views import answers, scripted, show

pytestmark = pytest.mark.slow
LONG = "a-name-of-a-model-or-a-file-that-is-much-wider-than-the-window-of-a-telephone"
# Titles of columns, and controls of the first row.
LISTS = {
    "jobs": (["Job", "Status", "Step", "Loss", "Validation", "From", "Created"], 2),
    "models": (["Name", "Architecture", "Parameters", "State of a session", "Loaded", "Created"], 2),
    "sessions": (["Session", "Model", "Tokens", "State", "Kept", "Created"], 2),
    "files": (["Name", "Purpose", "Size", "Uploaded"], 4),
    "evaluations": (["Model", "File", "Status", "Done", "Loss", "Perplexity", "Created"], 2),
    "evaluations/explanations": (["Model", "File", "Status", "Done", "Created"], 2),
    "batches": (["Batch", "Endpoint", "Status", "Done", "Failed", "Created", "Files"], 4),
    "operate": (["Name", "Role", "Project", "Created", "Last used", "State"], 1),
}
# Scroll each control to where it can be pressed. Returns those that cannot be.
OUT_OF_REACH = """() => [...document.querySelectorAll('body :is(a, button, input, select, summary)')].filter(node => {
    if (!node.checkVisibility() || node.matches('.skip, .hidden-input')) return false;
    node.scrollIntoView({block: 'center', inline: 'nearest'});
    const box = node.getBoundingClientRect(), x = box.left + Math.min(8, box.width / 2), found = document.elementFromPoint(x, (box.top + box.bottom) / 2);
    return box.width === 0 || x < 0 || x > innerWidth || !(found && (node.contains(found) || found.contains(node) && found.closest('label')));
}).map(node => `${node.tagName} ${node.textContent || node.getAttribute('aria-label')}`)"""


@pytest.mark.parametrize("view", LISTS)
def test_every_part_of_a_list_can_be_reached(engine, front, open_page, view):
    titles, controls = LISTS[view]
    scripted(engine, [LONG, "b", "c"])
    page = open_page(f"http://127.0.0.1:{front.port}/", size=NARROW)
    show(page, front, view)
    list_ = page.get_by_role("region", name="Keys") if view == "operate" else page.locator(".scroll:has(.rows)")
    row = list_.locator("tbody tr:not([aria-hidden])").first
    assert [text for text in list_.locator("th").all_inner_texts() if text] == titles
    assert all(cell.evaluate("node => node.checkVisibility()") for cell in row.locator("td").all())
    assert row.locator("a, button, input").count() == controls
    assert page.evaluate(OUT_OF_REACH) == [] and beside(page) == []
    assert page.evaluate("[scrollX, document.scrollingElement.scrollWidth <= innerWidth]") == [0, True]


def test_the_name_of_a_row_stays_while_its_box_is_scrolled(engine, front, open_page):
    scripted(engine, [LONG, "b", "c"])
    page = open_page(f"http://127.0.0.1:{front.port}/", size=NARROW)
    show(page, front, "models")
    page.locator(".scroll").evaluate("node => { node.scrollLeft = node.scrollWidth; }")
    name = page.locator(".rows .wide a").first.bounding_box()
    assert 0 <= name["x"] and page.locator(".scroll").evaluate("node => node.scrollLeft") > 100


def test_the_navigation_has_all_its_links_in_the_window(engine, front, open_page):
    scripted(engine)
    page = open_page(f"http://127.0.0.1:{front.port}/", size=NARROW)
    show(page, front, "models")
    boxes = [link.bounding_box() for link in page.locator("nav a").all()]
    assert len(boxes) == 9 and all(0 <= box["x"] and box["x"] + box["width"] <= NARROW[0] for box in boxes)
