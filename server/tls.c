#include "server/tls.h"

#include <errno.h>
#include <gnutls/x509.h>
#include <microhttpd.h>
#include <string.h>
#include <time.h>

#include "server/log.h"

enum { TLS_ID_BYTES = 64 };

typedef struct tls_pair {
	gnutls_x509_crt_t *certificates; /* the server's first */
	unsigned n_certificates;
	gnutls_x509_privkey_t key;
} tls_pair;

static tls_pair current;

static void tls_pair_fini(tls_pair *p)
{
	for (unsigned i = 0; i < p->n_certificates; i++)
		gnutls_x509_crt_deinit(p->certificates[i]);
	gnutls_free(p->certificates);
	if (p->key)
		gnutls_x509_privkey_deinit(p->key);
	*p = (tls_pair){0};
}

bool tls_is_supported(void)
{
	if (MHD_is_feature_supported(MHD_FEATURE_TLS) == MHD_YES &&
	    MHD_is_feature_supported(MHD_FEATURE_HTTPS_CERT_CALLBACK2) == MHD_YES)
		return true;
	log_line(LOG_ERROR, "--tls-certificate: this libmicrohttpd (%s) was built without TLS", MHD_get_version());
	return false;
}

/* --- files ------------------------------------------------------------------------------- */

static bool tls_read(const char *option, const char *path, gnutls_datum_t *out)
{
	errno = 0;
	int failed = gnutls_load_file(path, out);
	if (failed)
		log_line(LOG_ERROR, "--%s %s: %s", option, path, errno ? strerror(errno) : gnutls_strerror(failed));
	return !failed;
}

static bool tls_read_certificates(tls_pair *p, const char *path)
{
	gnutls_datum_t text;
	if (!tls_read("tls-certificate", path, &text))
		return false;
	int failed = gnutls_x509_crt_list_import2(&p->certificates, &p->n_certificates, &text, GNUTLS_X509_FMT_PEM,
	                                          GNUTLS_X509_CRT_LIST_FAIL_IF_UNSORTED);
	gnutls_free(text.data);
	if (failed < 0)
		log_line(LOG_ERROR, "--tls-certificate %s: not a chain of certificates in PEM, the server's first: %s",
		         path, gnutls_strerror(failed));
	else if (gnutls_x509_crt_get_expiration_time(p->certificates[0]) < time(NULL))
		log_line(LOG_WARN, "--tls-certificate %s: the certificate has expired", path);
	return failed >= 0;
}

static bool tls_read_key(tls_pair *p, const char *path)
{
	gnutls_datum_t text;
	if (!tls_read("tls-key", path, &text))
		return false;
	int failed = gnutls_x509_privkey_init(&p->key);
	if (!failed)
		failed = gnutls_x509_privkey_import2(p->key, &text, GNUTLS_X509_FMT_PEM, NULL, 0);
	gnutls_memset(text.data, 0, text.size);
	gnutls_free(text.data);
	if (failed)
		log_line(LOG_ERROR, "--tls-key %s: not a private key in PEM without a password: %s", path,
		         gnutls_strerror(failed));
	return !failed;
}

static bool tls_pair_matches(const tls_pair *p)
{
	unsigned char of_certificate[TLS_ID_BYTES], of_key[TLS_ID_BYTES];
	size_t certificate_bytes = sizeof of_certificate, key_bytes = sizeof of_key;
	return gnutls_x509_crt_get_key_id(p->certificates[0], GNUTLS_KEYID_USE_SHA256, of_certificate,
	                                  &certificate_bytes) == 0 &&
	       gnutls_x509_privkey_get_key_id(p->key, GNUTLS_KEYID_USE_SHA256, of_key, &key_bytes) == 0 &&
	       certificate_bytes == key_bytes && memcmp(of_certificate, of_key, key_bytes) == 0;
}

bool tls_load(const char *certificate, const char *key)
{
	tls_pair next = {0};
	bool ok = tls_read_certificates(&next, certificate) && tls_read_key(&next, key);
	if (ok && !tls_pair_matches(&next)) {
		log_line(LOG_ERROR, "--tls-key %s: not the key of the certificate %s", key, certificate);
		ok = false;
	}
	if (!ok) {
		tls_pair_fini(&next);
		return false;
	}
	tls_pair_fini(&current);
	current = next;
	return true;
}

void tls_unload(void)
{
	tls_pair_fini(&current);
}

/* --- handshakes ---------------------------------------------------------------------------- */

/* The library frees the copies, also if the handshake fails. */
int tls_retrieve(gnutls_session_t session, const struct gnutls_cert_retr_st *info, gnutls_pcert_st **certificates,
                 unsigned *n_certificates, gnutls_ocsp_data_st **ocsp, unsigned *n_ocsp, gnutls_privkey_t *key,
                 unsigned *flags)
{
	(void)session;
	(void)info;
	gnutls_privkey_t key_copy = NULL;
	unsigned n = 0;
	gnutls_pcert_st *copies = gnutls_calloc(current.n_certificates, sizeof *copies);
	if (!copies || gnutls_privkey_init(&key_copy) != 0 ||
	    gnutls_privkey_import_x509(key_copy, current.key, GNUTLS_PRIVKEY_IMPORT_COPY) != 0)
		goto fail;
	for (; n < current.n_certificates; n++)
		if (gnutls_pcert_import_x509(&copies[n], current.certificates[n], 0) != 0)
			goto fail;
	*certificates = copies;
	*n_certificates = n;
	*ocsp = NULL;
	*n_ocsp = 0;
	*key = key_copy;
	*flags = GNUTLS_CERT_RETR_DEINIT_ALL;
	return 0;
fail:
	while (n > 0)
		gnutls_pcert_deinit(&copies[--n]);
	gnutls_free(copies);
	if (key_copy)
		gnutls_privkey_deinit(key_copy);
	return -1;
}
