/* The operations that the key in use may do. openapi.json has the role that each operation needs. */
import {get, getKey} from './api.js';
import {openapi} from './form.js';

const ROLES = ['user', 'trainer', 'admin'];
/* Lists that only keys of a role, and of those above it, may see. */
const ASKED = [['admin', 'v1/keys'], ['trainer', 'v1/files']];

const known = {key: '', role: null};

async function askRole() {
	for (const [role, list] of ASKED) {
		try {
			await get(list, {limit: 1});
			return role;
		} catch (error) {
			if (error.status !== 403) throw error;
		}
	}
	return 'user';
}

/** Return may(method, path): true if the key in use has the role for this operation of openapi.json. */
export async function rights() {
	const key = getKey();
	if (!key) return () => true; /* a service without keys allows everything */
	if (known.key !== key) Object.assign(known, {role: await askRole(), key});
	const {role} = known, {paths} = await openapi();
	return (method, path) => ROLES.indexOf(role) >= ROLES.indexOf(paths[path][method]['x-role'] || 'admin');
}
