/* Fields from the schemas of openapi.json: names, ranges, defaults and help are those of the service. */
import {element} from './dom.js';
import {get} from './api.js';

let document_ = null;

/** The schema of that name in openapi.json, which is read once. */
export async function schema(name) {
	document_ ||= get('openapi.json');
	try {
		return (await document_).components.schemas[name];
	} catch (error) {
		document_ = null;
		throw error;
	}
}

const words = name => (name[0].toUpperCase() + name.slice(1)).replaceAll('_', ' ');
const sentence = text => (text || '').replaceAll('`', '').match(/^.*?(?<!e\.g|i\.e)[.:;](?=\s|$)|^.*$/s)[0].replace(/[:;]$/, '.');

function control(property, id) {
	const value = property['x-default'] ?? property.default;
	if (property.type === 'boolean') return element('input', {type: 'checkbox', id, checked: value === true});
	if (property.enum) return element('select', {id}, element('option', {value: ''}, value === undefined ? 'by default' : `${value} (default)`), property.enum.filter(name => name !== value).map(name => element('option', {}, name)));
	if (property.type === 'integer' || property.type === 'number')
		return element('input', {type: 'number', id, step: property.type === 'integer' ? 1 : 'any', min: property.minimum, max: property.maximum, placeholder: value === undefined ? '' : String(value)});
	return element('input', {type: 'text', id, maxlength: property.maxLength, placeholder: value === undefined ? '' : String(value)});
}

/** Fields for these properties of a schema. Returns {node, values()}: the values that differ from the defaults. */
export function fields(schema, names, prefix) {
	const inputs = names.filter(name => schema.properties[name]).map(name => {
		const property = schema.properties[name], id = `${prefix}-${name}`;
		return {name, property, input: control(property, id), id};
	});
	const node = element('div', {class: 'fields'}, inputs.map(({name, property, input, id}) => {
		const help = sentence(property.description);
		input.setAttribute('aria-describedby', `${id}-help`);
		return element('div', {class: property.type === 'boolean' ? 'field check' : 'field'}, element('label', {for: id}, words(name)), input, element('small', {id: `${id}-help`, title: property.description || ''}, help));
	}));
	function values() {
		const out = {};
		for (const {name, property, input} of inputs) {
			const start = property['x-default'] ?? property.default;
			if (property.type === 'boolean') {
				if (input.checked !== (start === true)) out[name] = input.checked;
			} else if (input.value !== '') out[name] = property.type === 'integer' || property.type === 'number' ? input.valueAsNumber : input.value;
		}
		return out;
	}
	return {node, values};
}

/** A select of the objects of a list, with "none" for no choice. An id that the list lacks, such as a checkpoint's, can be
 * chosen nevertheless. */
export function choice(label, rows, chosen, text, none) {
	const select = element('select', {'aria-label': label}, none ? element('option', {value: ''}, none) : null,
		chosen && !rows.some(row => row.id === chosen) ? element('option', {value: chosen, selected: true}, chosen) : null,
		rows.map(row => element('option', {value: row.id, selected: row.id === chosen}, text(row))));
	return {node: element('label', {}, label, ' ', select), select};
}
