/* Exceptions are off in toml++, so memory that cannot be allocated ends in std::bad_alloc alone. */
#include "proto/config/toml_file.h"

#define TOML_HEADER_ONLY 1
#define TOML_EXCEPTIONS 0
#define TOML_ENABLE_FORMATTERS 0
#define TOML_ENABLE_UNRELEASED_FEATURES 0
#include <toml++/toml.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <vector>

namespace
{

struct value {
	toml_type type = TOML_OTHER;
	std::vector<std::string> texts;
};

bool is_c_string(const std::string &text)
{
	return text.find('\0') == std::string::npos;
}

value value_of(const toml::node &node)
{
	char number[40];
	if (const auto *text = node.as_string(); text && is_c_string(text->get()))
		return {TOML_STRING, {text->get()}};
	if (const auto *integer = node.as_integer())
		return {TOML_INTEGER, {std::to_string(integer->get())}};
	if (const auto *boolean = node.as_boolean())
		return {TOML_BOOLEAN, {boolean->get() ? "true" : "false"}};
	if (const auto *real = node.as_floating_point()) {
		std::snprintf(number, sizeof number, "%.17g", real->get());
		return {TOML_NUMBER, {number}};
	}
	value list{TOML_STRINGS, {}};
	const auto *array = node.as_array();
	if (!array)
		return {};
	for (const toml::node &element : *array) {
		if (!element.is_string() || !is_c_string(element.as_string()->get()))
			return {};
		list.texts.push_back(element.as_string()->get());
	}
	return list;
}

bool offer(toml_take *take, void *context, const std::string &table, const toml::key &key, const toml::node &node)
{
	const value v = value_of(node);
	std::vector<const char *> texts;
	for (const std::string &text : v.texts)
		texts.push_back(text.c_str());
	const toml_entry entry = {table.c_str(), key.data(),   static_cast<int>(key.source().begin.line),
	                          v.type,        texts.data(), texts.size()};
	return take(context, &entry);
}

bool offer_table(toml_take *take, void *context, const toml::key &key, const toml::table &table)
{
	const std::string name(key.str());
	const toml_entry itself = {name.c_str(), nullptr, static_cast<int>(key.source().begin.line), TOML_OTHER, nullptr, 0};
	if (!take(context, &itself))
		return false;
	for (auto &&[inner, node] : table)
		if (!offer(take, context, name, inner, node))
			return false;
	return true;
}

bool read_text(const char *path, std::string &text)
{
	struct closer {
		void operator()(std::FILE *file) const
		{
			const int error = errno;
			std::fclose(file);
			errno = error;
		}
	};
	const std::unique_ptr<std::FILE, closer> file(std::fopen(path, "re"));
	char bytes[4096];
	std::size_t n;
	if (!file)
		return false;
	errno = 0;
	while ((n = std::fread(bytes, 1, sizeof bytes, file.get())) > 0)
		text.append(bytes, n);
	return !std::ferror(file.get());
}

bool read_file(const char *path, toml_take *take, void *context, char *problem, size_t bytes, bool *out_of_memory)
{
	std::string text;
	if (!read_text(path, text)) {
		*out_of_memory = errno == ENOMEM;
		std::snprintf(problem, bytes, "%s: %s", path, std::strerror(errno));
		return false;
	}
	const toml::parse_result parsed = toml::parse(text);
	if (!parsed) {
		const std::string reason(parsed.error().description());
		std::snprintf(problem, bytes, "%s:%u: %s", path,
		              static_cast<unsigned>(parsed.error().source().begin.line), reason.c_str());
		return false;
	}
	for (auto &&[key, node] : parsed.table()) {
		const toml::table *table = node.as_table();
		if (!(table ? offer_table(take, context, key, *table) : offer(take, context, "", key, node)))
			return false;
	}
	return true;
}

} // namespace

bool toml_file_read(const char *path, toml_take *take, void *context, char *problem, size_t bytes, bool *out_of_memory)
{
	try {
		return read_file(path, take, context, problem, bytes, out_of_memory);
	} catch (const std::bad_alloc &) {
		std::snprintf(problem, bytes, "%s: out of memory", path);
		*out_of_memory = true;
		return false;
	}
}
