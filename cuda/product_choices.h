/* product_choices.h - the fastest algorithm of each product, kept in a file.
 *
 * FOLDER/products-DIGEST is a text: the owner's identity (device, driver, library), one line per product with its
 * algorithm's index, and a digest of these. A file that does not match its digest or the identity is ignored and
 * replaced by the next choice. Each write replaces the file atomically.
 *
 * Two processes may both time a product, but they agree: the folder is locked (flock) while a choice is written, and the
 * first one that is in the file holds. Nothing is locked while a product is timed, since that may wait for the
 * other processes of a job. In one process a product keeps its choice, even if the file is removed or cannot be written.
 * One thread. */
#ifndef CUDA_PRODUCT_CHOICES_H
#define CUDA_PRODUCT_CHOICES_H

typedef struct product_choices product_choices;

/* identity: lines, each with its newline. NULL: out of memory, or the path is too long. */
product_choices *product_choices_new(const char *folder, const char *identity);
void product_choices_free(product_choices *c); /* NULL is legal */

/* Return the index for a product, a key without a newline; -1: unknown. may_read: also look in the file. */
int product_choices_find(product_choices *c, const char *key, bool may_read);
/* Keep a choice for the key, here and in the file. Return the one that holds: an earlier one, or `choice`. Waits while
 * another process writes. */
int product_choices_keep(product_choices *c, const char *key, int choice);

#endif
