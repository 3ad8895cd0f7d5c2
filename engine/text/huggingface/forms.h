/* forms.h - Unicode's normalization forms. */
#ifndef ENGINE_TEXT_HUGGINGFACE_FORMS_H
#define ENGINE_TEXT_HUGGINGFACE_FORMS_H

#include "engine/text/huggingface/pieces.h"

typedef enum form { FORM_NFC, FORM_NFD, FORM_NFKC, FORM_NFKD } form;

/* Append the form of a piece to `out`. Linear in its length, whatever its marks. STATUS_NOMEM. */
status forms_append(form f, const text_piece *p, text_buffer *out);
/* True if the character has no decomposition in this form. */
bool forms_keeps(form f, uint32_t c);

#endif
