/* Fields from the schemas of openapi.json: names, ranges, defaults and help are those of the service. */
import {element, replace} from './dom.js';
import {get} from './api.js';
import {message} from './notice.js';

let document_ = null;

/** openapi.json, which is read once. */
export async function openapi() {
	document_ ||= get('openapi.json');
	try {
		return await document_;
	} catch (error) {
		document_ = null;
		throw error;
	}
}

/** The schema of that name. */
export async function schema(name) {
	return (await openapi()).components.schemas[name];
}

/** The label of a field of this name. */
export const labelOf = name => (name[0].toUpperCase() + name.slice(1)).replaceAll('_', ' ');

const lastOf = param => param.split('.').pop();

const sentence = text => (text || '').replaceAll('`', '').match(/^.*?(?<!e\.g|i\.e)[.:;](?=\s|$)|^.*$/s)[0].replace(/[:;]$/, '.');

const defaultOf = property => property['x-default'] ?? property.default;
const optionsOf = (property, value, required) => [required ? null : element('option', {value: ''}, value === undefined ? 'by default' : `${value} (default)`), property.enum.filter(name => name !== value).map(name => element('option', {}, name))];

function control(property, id, required) {
	const value = defaultOf(property);
	if (property.type === 'boolean') return element('input', {type: 'checkbox', id, checked: value === true});
	if (property.enum) return element('select', {id}, optionsOf(property, value, required));
	if (property.type === 'integer' || property.type === 'number')
		return element('input', {type: 'number', id, step: property.type === 'integer' ? 1 : 'any', min: property.minimum, max: property.maximum, placeholder: value === undefined ? '' : String(value)});
	return element('input', {type: 'text', id, required, maxlength: property.maxLength, placeholder: value === undefined ? '' : String(value)});
}

/* An error with the form's labels in place of the service's names. */
function inLabels(error, {name, label}, inputs) {
	const own = error.message.replace(`'${error.param}'`, label), rest = inputs.filter(each => each.name !== name && each.name.includes('_'));
	const text = rest.reduce((said, each) => said.replace(new RegExp(`'?\\b([a-z]+\\.)*${each.name}\\b'?`, 'g'), `\u201c${each.label}\u201d`), own);
	return {message: own === error.message ? `${label}: ${text}` : text};
}

/** Return refuse(error, quiet) for these inputs, [{name, label, input}]. It shows an error at the input that it names, and returns
 * false if there is none; null removes it. A name is the last part of the service's: the form has no two that end alike.
 * quiet: the focus stays where it is. */
export function refusals(inputs) {
	return (error, quiet) => {
		for (const {input} of inputs) {
			input.removeAttribute('aria-invalid');
			input.closest('.field').querySelectorAll('.error').forEach(said => said.remove());
		}
		const found = error && error.param && inputs.find(each => each.name === lastOf(error.param)), fold = found && found.input.closest('details');
		if (!found) return false;
		if (fold) fold.open = true;
		found.input.setAttribute('aria-invalid', 'true');
		found.input.closest('.field').append(message(inLabels(error, found, inputs)));
		if (!quiet) found.input.focus();
		return true;
	};
}

/** Fields for these properties of a schema. Returns {node, inputs, values(), fill(values), resolve(values), refuse(error)}.
 * values(): those that differ from the defaults. fill(): set fields, those without a value to their defaults. resolve(): show
 * what the service takes for each field that is not set, or the schema's defaults for null. refuse(): see refusals(). */
export function fields(schema, names, prefix, labels = {}) {
	const inputs = names.filter(name => schema.properties[name]).map(name => {
		const property = schema.properties[name], id = `${prefix}-${name}`, required = (schema.required || []).includes(name) && defaultOf(property) === undefined;
		return {name, property, input: control(property, id, required), id, required, label: labels[name] || labelOf(name), start: defaultOf(property)};
	});
	const node = element('div', {class: 'fields'}, inputs.map(({property, input, id, label}) => {
		const help = sentence(property.description);
		input.setAttribute('aria-describedby', `${id}-help`);
		return element('div', {class: property.type === 'boolean' ? 'field check' : 'field'}, element('label', {for: id}, label), input, element('small', {id: `${id}-help`, title: property.description || ''}, help));
	}));
	function values() {
		const out = {};
		for (const {name, property, input, start} of inputs) {
			if (property.type === 'boolean') {
				if (input.checked !== (start === true)) out[name] = input.checked;
			} else if (input.value !== '') out[name] = property.type === 'integer' || property.type === 'number' ? input.valueAsNumber : input.value;
		}
		return out;
	}
	function fill(given) {
		for (const {name, property, input, start} of inputs) {
			if (property.type === 'boolean') input.checked = given[name] ?? start === true;
			else input.value = property.enum && given[name] === start ? '' : given[name] ?? '';
		}
	}
	function resolve(resolved) {
		const given = values();
		for (const each of inputs.filter(({name, required}) => !required && !(name in given))) {
			const {name, property, input} = each;
			each.start = (resolved && resolved[name]) ?? defaultOf(property);
			if (property.type === 'boolean') input.checked = each.start === true;
			else if (property.enum) replace(input, optionsOf(property, each.start));
			else input.placeholder = each.start ?? '';
		}
	}
	return {node, inputs, values, fill, resolve, refuse: refusals(inputs)};
}

/** A select of the objects of a list, with "none" for no choice. An id that the list lacks, such as a checkpoint's, can be
 * chosen nevertheless. */
export function choice(label, rows, chosen, text, none) {
	const select = element('select', {'aria-label': label}, none ? element('option', {value: ''}, none) : null,
		chosen && !rows.some(row => row.id === chosen) ? element('option', {value: chosen, selected: true}, chosen) : null,
		rows.map(row => element('option', {value: row.id, selected: row.id === chosen}, text(row))));
	return {node: element('label', {}, label, ' ', select), select};
}
