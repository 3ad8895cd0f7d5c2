/* lora_bank.h - the entries of a loaded model's bank (engine/model/lora.h), which live sessions share.
 *
 * The bank is made for the first session with a low-rank adapter. An adapter stays in its entry after its last session,
 * until another needs the entry or its strips. Executor thread. */
#ifndef ENGINE_SERVE_LORA_BANK_H
#define ENGINE_SERVE_LORA_BANK_H

#include "engine/serve/served_model.h"

typedef struct lora_bank lora_bank;

/* Return the entry of an adapter for one more session; 0 for an adapter without one, or NULL. STATUS_BUSY: sessions use
 * LORA_ENTRIES - 1 others, or need most strips. STATUS_NOMEM. STATUS_DEVICE. */
status lora_bank_take(served_model *m, const served_adapter *a, int32_t *entry, error *err);
void lora_bank_give(served_model *m, int32_t entry); /* 0 is legal */
enum { LORA_BANK_INPUTS = 3 };
/* Return the inputs of a forward with adapters. The bank exists once lora_bank_take has returned an entry. */
void lora_bank_inputs(const lora_bank *b, forward_input inputs[LORA_BANK_INPUTS]);
void lora_bank_free(served_model *m);

#endif
