/* product_choices.h - the fastest algorithm of each product, kept in a file.
 *
 * FOLDER/products-DIGEST is a text: the owner's identity (device, driver, library), one line per product with the index
 * of its algorithm, and a digest of all that. A file that does not match its digest or the identity is ignored and
 * replaced by the next choice. Each write replaces the file atomically.
 *
 * A choice is made once. The folder is locked (flock) from _begin, which reads the file, to _end. So two processes use
 * the same algorithm even if both meet a product for the first time. Without a lock or a file, choices are valid for
 * this process alone. If the file is removed, choices are made again. One thread. */
#ifndef CUDA_PRODUCT_CHOICES_H
#define CUDA_PRODUCT_CHOICES_H

typedef struct product_choices product_choices;

/* identity: lines, each with its newline. NULL: out of memory, or the path is too long. */
product_choices *product_choices_new(const char *folder, const char *identity);
void product_choices_free(product_choices *c); /* NULL is legal */

/* Return the index for a product, a key without a newline, or -1 if this process does not know it. No I/O. */
int product_choices_find(const product_choices *c, const char *key);
/* Return the index for a product, or -1. After -1 the folder is locked until product_choices_end. Blocks while another
 * process chooses. */
int product_choices_begin(product_choices *c, const char *key);
/* Keep the choice for the key of product_choices_begin, write the file and unlock the folder. -1: only unlock. */
void product_choices_end(product_choices *c, const char *key, int choice);

#endif
