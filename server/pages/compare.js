// The server has drawn everything; this makes the columns reachable, and says in words what the one in hand holds.
const $ = id => document.getElementById(id);
const columns = [...$('text').querySelectorAll('.column')];

for (const column of columns) column.setAttribute('aria-label', column.title);
$('text').setAttribute('aria-label', 'Tokens of both texts with their numbers; arrow keys move');
if (columns.length) strip($('text'), columns, columns.length - 1, i => { $('readout').textContent = columns[i].title; });
