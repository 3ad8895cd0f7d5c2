/* tls.h - the server's certificate and private key.
 *
 * The process has one pair, since the callback of the library has no context. A connection gets copies of the pair when
 * its handshake needs them. Loading another pair therefore affects new connections only. */
#ifndef SERVER_TLS_H
#define SERVER_TLS_H

#include <gnutls/abstract.h>
#include <stdbool.h>

/* Protocol versions and algorithms, in the form of GnuTLS. */
#define TLS_PRIORITIES "NORMAL:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2"

/* True if the libraries offer what is used here; otherwise a message is logged. */
bool tls_is_supported(void);
/* Load PEM files: the server's certificate, followed by those of its issuers, and its private key without a password.
 * On failure, log a message that names the option and the file, and keep the pair loaded before. */
bool tls_load(const char *certificate, const char *key);
/* Forget the pair. */
void tls_unload(void);
/* MHD_OPTION_HTTPS_CERT_CALLBACK2 */
int tls_retrieve(gnutls_session_t session, const struct gnutls_cert_retr_st *info, gnutls_pcert_st **certificates,
                 unsigned *n_certificates, gnutls_ocsp_data_st **ocsp, unsigned *n_ocsp, gnutls_privkey_t *key,
                 unsigned *flags);

#endif
