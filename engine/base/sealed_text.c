#include "engine/base/sealed_text.h"

#include <nettle/base64.h>
#include <nettle/hmac.h>
#include <nettle/memops.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/file.h"

static const char keyed_prefix[] = "hs256.";
enum { PREFIX = sizeof keyed_prefix - 1 };

status seal_key_read(seal_key *out, const char *path, error *err)
{
	char *data;
	size_t bytes;
	*out = (seal_key){0};
	status s = file_read(path, SEAL_KEY_MAX_BYTES + 2, &data, &bytes, err);
	if (s != STATUS_OK && s != STATUS_TOO_LARGE)
		return s;
	while (s == STATUS_OK && bytes > 0 && (data[bytes - 1] == '\n' || data[bytes - 1] == '\r'))
		bytes--;
	if (s != STATUS_OK || bytes < SEAL_KEY_MIN_BYTES || bytes > SEAL_KEY_MAX_BYTES) {
		free(data);
		return error_set(err, STATUS_INVALID, NULL, "a key has %d to %d bytes", SEAL_KEY_MIN_BYTES,
		                 SEAL_KEY_MAX_BYTES);
	}
	out->bytes = bytes;
	memcpy(out->key, data, bytes);
	memset(data, 0, bytes);
	free(data);
	return STATUS_OK;
}

static void sign(const void *data, size_t bytes, const seal_key *key, uint8_t out[SHA256_DIGEST_SIZE])
{
	struct hmac_sha256_ctx c;
	hmac_sha256_set_key(&c, key->bytes, key->key);
	hmac_sha256_update(&c, bytes, data);
	hmac_sha256_digest(&c, SHA256_DIGEST_SIZE, out);
}

char *sealed_text_write(const void *data, size_t bytes, const seal_key *key)
{
	const bool keyed = key->bytes > 0;
	struct base64_encode_ctx c;
	char *text = malloc(PREFIX + BASE64_ENCODE_LENGTH(bytes + SHA256_DIGEST_SIZE) + BASE64_ENCODE_FINAL_LENGTH + 1);
	char *at = text;
	if (!text)
		return NULL;
	if (keyed) {
		memcpy(at, keyed_prefix, PREFIX);
		at += PREFIX;
	}
	base64_encode_init(&c);
	at += base64_encode_update(&c, at, bytes, data);
	if (keyed) {
		uint8_t hash[SHA256_DIGEST_SIZE];
		sign(data, bytes, key, hash);
		at += base64_encode_update(&c, at, sizeof hash, hash);
	}
	at += base64_encode_final(&c, at);
	*at = 0;
	return text;
}

/* Check and remove the hash at the end. */
static status check_hash(const unsigned char *data, size_t *bytes, const seal_key *key, error *err)
{
	uint8_t hash[SHA256_DIGEST_SIZE];
	if (*bytes < sizeof hash)
		return error_set(err, STATUS_CORRUPT, NULL, "the seal is cut off");
	*bytes -= sizeof hash;
	sign(data, *bytes, key, hash);
	return memeql_sec(hash, data + *bytes, sizeof hash)
	           ? STATUS_OK
	           : error_set(err, STATUS_CORRUPT, NULL, "the seal is not of this service's key, or it was changed");
}

status sealed_text_read(const char *text, size_t length, const seal_key *key, unsigned char **data, size_t *bytes,
                        error *err)
{
	struct base64_decode_ctx c;
	const bool keyed = length >= PREFIX && memcmp(text, keyed_prefix, PREFIX) == 0;
	*data = NULL;
	*bytes = 0;
	if (keyed != (key->bytes > 0))
		return error_set(err, STATUS_CORRUPT, NULL,
		                 keyed ? "sealed with a key, and this service has none"
		                       : "not sealed, and this service has a key");
	text += keyed ? PREFIX : 0;
	length -= keyed ? PREFIX : 0;
	*data = malloc(BASE64_DECODE_LENGTH(length) + 1);
	if (!*data)
		return STATUS_NOMEM;
	base64_decode_init(&c);
	status s = base64_decode_update(&c, bytes, *data, length, text) && base64_decode_final(&c)
	               ? STATUS_OK
	               : error_set(err, STATUS_CORRUPT, NULL, "not base64");
	if (s == STATUS_OK && keyed)
		s = check_hash(*data, bytes, key, err);
	if (s != STATUS_OK) {
		free(*data);
		*data = NULL;
		*bytes = 0;
	}
	return s;
}
