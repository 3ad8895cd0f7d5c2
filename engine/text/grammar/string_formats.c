#include "engine/text/grammar/schema_compiler.h"

#include <stddef.h>
#include <string.h>

/* Dates of the years 1 to 9999 in the Gregorian calendar. */
#define YEAR "(?:000[1-9]|00[1-9]\\d|0[1-9]\\d\\d|[1-9]\\d{3})"
#define LEAP "(?:0[48]|[2468][048]|[13579][26])"
#define LEAP_YEAR "(?:\\d\\d" LEAP "|" LEAP "00)"
#define DAY "(?:0[1-9]|1\\d|2[0-8])"
#define DATE                                                                                                           \
	"(?:" YEAR "-(?:(?:0[1-9]|1[0-2])-" DAY "|(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31)|" LEAP_YEAR      \
	"-02-29)"
#define HOURS "(?:[01]\\d|2[0-3])"
#define TIME HOURS ":[0-5]\\d:[0-5]\\d(?:\\.\\d{1,6})?(?:Z|[+-]" HOURS ":[0-5]\\d)"

#define COUNT "\\d{1,4}"
#define TIME_PART "T(?:" COUNT "S|" COUNT "M(?:" COUNT "S)?|" COUNT "H(?:" COUNT "M(?:" COUNT "S)?)?)"
#define DATE_PART "(?:" COUNT "D|" COUNT "M(?:" COUNT "D)?|" COUNT "Y(?:" COUNT "M(?:" COUNT "D)?)?)"

#define HEX "[0-9a-fA-F]"
#define UUID(version) "^" HEX "{8}-" HEX "{4}-" version HEX "{3}-[89abAB]" HEX "{3}-" HEX "{12}$"

#define LABEL "[a-z0-9]{1,12}(?:-[a-z0-9]{1,12}){0,2}"
#define HOST "(?:" LABEL "\\.){1,3}[a-z]{2,12}"
#define ATOM "[A-Za-z0-9_+-]{1,20}"
#define EMAIL "^" ATOM "(?:\\." ATOM "){0,2}@" HOST "$"

#define OCTET "(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)"
#define IPV4 "(?:" OCTET "\\.){3}" OCTET
#define GROUP HEX "{1,4}"
#define IPV6                                                                                                           \
	"(?:(?:" GROUP ":){7}" GROUP "|(?:" GROUP ":){1,7}:|(?:" GROUP ":){6}:" GROUP "|(?:" GROUP ":){5}(?::" GROUP   \
	"){1,2}|(?:" GROUP ":){4}(?::" GROUP "){1,3}|(?:" GROUP ":){3}(?::" GROUP "){1,4}|(?:" GROUP ":){2}(?::" GROUP \
	"){1,5}|" GROUP ":(?::" GROUP "){1,6}|:(?:(?::" GROUP "){1,7}|:))"

#define URL_TEXT "[A-Za-z0-9._~-]{1,40}"
#define URI "^https?://" HOST "(?:/" URL_TEXT "){0,4}/?(?:\\?" URL_TEXT "=" URL_TEXT ")?(?:#" URL_TEXT ")?$"

#define PART "[A-Za-z0-9._~-]+"
#define REFERENCE "^(?:https?://" HOST ")?(?:/?" PART "(?:/" PART "){0,4}/?)?(?:\\?" PART "=" PART ")?(?:#" PART ")?$"
#define TEMPLATE "^https?://" HOST "(?:/(?:" URL_TEXT "|\\{[a-z]{1,12}\\})){0,4}/?$"
#define POINTER "(?:/(?:[A-Za-z0-9_.-]|~[01]){1,20}){0,8}"

/* Regular expressions that every dialect reads alike. */
#define REGEX "^\\^?(?:(?:[A-Za-z0-9 _-]|\\\\[dws.]|\\[(?:a-z|A-Z|0-9|[a-z0-9_]){1,6}\\])[*+?]?){0,30}\\$?$"

#define BASE64(c) "^(?:" c "{4})*(?:" c "{2}==|" c "{3}=)?$"

static const struct {
	const char *name, *pattern;
} formats[] = {
    {"date", "^" DATE "$"},
    {"time", "^" TIME "$"},
    {"date-time", "^" DATE "T" TIME "$"},
    {"duration", "^P(?:\\d{1,4}W|" DATE_PART "(?:" TIME_PART ")?|" TIME_PART ")$"},
    {"uuid", "^" HEX "{8}(?:-" HEX "{4}){3}-" HEX "{12}$"},
    {"uuid1", UUID("1")},
    {"uuid3", UUID("3")},
    {"uuid4", UUID("4")},
    {"uuid5", UUID("5")},
    {"uuid6", UUID("6")},
    {"uuid7", UUID("7")},
    {"uuid8", UUID("8")},
    {"email", EMAIL},
    {"idn-email", EMAIL},
    {"name-email", EMAIL},
    {"hostname", "^" HOST "$"},
    {"idn-hostname", "^" HOST "$"},
    {"ipv4", "^" IPV4 "$"},
    {"ipv4network", "^" IPV4 "$"},
    {"ipv4interface", "^" IPV4 "$"},
    {"ipv6", "^" IPV6 "$"},
    {"ipv6network", "^" IPV6 "$"},
    {"ipv6interface", "^" IPV6 "$"},
    {"ipvanyaddress", "^(?:" IPV4 "|" IPV6 ")$"},
    {"ipvanynetwork", "^(?:" IPV4 "|" IPV6 ")$"},
    {"ipvanyinterface", "^(?:" IPV4 "|" IPV6 ")$"},
    {"uri", URI},
    {"iri", URI},
    {"uri-reference", REFERENCE},
    {"iri-reference", REFERENCE},
    {"uri-template", TEMPLATE},
    {"json-pointer", "^" POINTER "$"},
    {"relative-json-pointer", "^(?:0|[1-9]\\d{0,3})(?:#|" POINTER ")$"},
    {"regex", REGEX},
    {"base64", BASE64("[A-Za-z0-9+/]")},
    {"byte", BASE64("[A-Za-z0-9+/]")},
    {"base64url", BASE64("[A-Za-z0-9_-]")},
};

const char *string_format_pattern(const char *name)
{
	for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
		if (strcmp(formats[i].name, name) == 0)
			return formats[i].pattern;
	return NULL;
}
