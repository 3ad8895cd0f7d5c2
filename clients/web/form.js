/* Fields from the schemas of openapi.json: names, ranges, defaults and help are those of the service. */
import {element} from './dom.js';
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

const words = name => (name[0].toUpperCase() + name.slice(1)).replaceAll('_', ' ');
const sentence = text => (text || '').replaceAll('`', '').match(/^.*?(?<!e\.g|i\.e)[.:;](?=\s|$)|^.*$/s)[0].replace(/[:;]$/, '.');

function control(property, id, required) {
	const value = property['x-default'] ?? property.default;
	if (property.type === 'boolean') return element('input', {type: 'checkbox', id, checked: value === true});
	if (property.enum) return element('select', {id}, required ? null : element('option', {value: ''}, value === undefined ? 'by default' : `${value} (default)`), property.enum.filter(name => name !== value).map(name => element('option', {}, name)));
	if (property.type === 'integer' || property.type === 'number')
		return element('input', {type: 'number', id, step: property.type === 'integer' ? 1 : 'any', min: property.minimum, max: property.maximum, placeholder: value === undefined ? '' : String(value)});
	return element('input', {type: 'text', id, required, maxlength: property.maxLength, placeholder: value === undefined ? '' : String(value)});
}

/** Fields for these properties of a schema. Returns {node, values(), refuse(error)}. values(): those that differ from the
 * defaults. refuse() shows an error at the field that it names, and returns false if there is none; null removes it. */
export function fields(schema, names, prefix) {
	const inputs = names.filter(name => schema.properties[name]).map(name => {
		const property = schema.properties[name], id = `${prefix}-${name}`, required = (schema.required || []).includes(name) && (property['x-default'] ?? property.default) === undefined;
		return {name, property, input: control(property, id, required), id};
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
	function refuse(error) {
		for (const {input} of inputs) {
			input.removeAttribute('aria-invalid');
			input.parentElement.querySelectorAll('.error').forEach(said => said.remove());
		}
		const found = error && inputs.find(each => each.name === error.param), fold = found && found.input.closest('details');
		if (!found) return false;
		if (fold) fold.open = true;
		found.input.setAttribute('aria-invalid', 'true');
		found.input.parentElement.append(message(error));
		found.input.focus();
		return true;
	}
	return {node, values, refuse};
}

/** A select of the objects of a list, with "none" for no choice. An id that the list lacks, such as a checkpoint's, can be
 * chosen nevertheless. */
export function choice(label, rows, chosen, text, none) {
	const select = element('select', {'aria-label': label}, none ? element('option', {value: ''}, none) : null,
		chosen && !rows.some(row => row.id === chosen) ? element('option', {value: chosen, selected: true}, chosen) : null,
		rows.map(row => element('option', {value: row.id, selected: row.id === chosen}, text(row))));
	return {node: element('label', {}, label, ' ', select), select};
}
