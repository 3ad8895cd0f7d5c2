/* schema_tables.c - the tables of schema.h, in the order of openapi.yaml.
 *
 * A bound that is a matter of taste is OpenAI's; one that guards memory says so. What a table cannot
 * say (one of two fields, a known model, a key of a configuration) is the handler's to check. */
#include "proto/schema.h"

#define COUNT(name_, min_, max_)                                                                                       \
	{                                                                                                              \
		.name = name_, .type = FIELD_INTEGER, .min = min_, .max = max_                                         \
	}
#define RANGE(name_, min_, max_)                                                                                       \
	{                                                                                                              \
		.name = name_, .type = FIELD_NUMBER, .min = min_, .max = max_                                          \
	}
#define ABOVE(name_, min_, max_)                                                                                       \
	{                                                                                                              \
		.name = name_, .type = FIELD_NUMBER, .min = min_, .max = max_, .exclusive = true                       \
	}
#define TEXT(name_, min_, max_)                                                                                        \
	{                                                                                                              \
		.name = name_, .type = FIELD_STRING, .min = min_, .max = max_                                          \
	}
#define FLAG(name_)                                                                                                    \
	{                                                                                                              \
		.name = name_, .type = FIELD_BOOLEAN                                                                   \
	}
#define CHOICE(name_, choices_)                                                                                        \
	{                                                                                                              \
		.name = name_, .type = FIELD_STRING, .choices = choices_                                               \
	}
#define OBJECT(name_, nested_)                                                                                         \
	{                                                                                                              \
		.name = name_, .type = FIELD_OBJECT, .nested = &nested_                                                \
	}
#define UNION(name_, items_)                                                                                           \
	{                                                                                                              \
		.name = name_, .type = FIELD_UNION, .items = items_                                                    \
	}
#define ARRAY(name_, min_, max_, items_)                                                                               \
	{                                                                                                              \
		.name = name_, .type = FIELD_ARRAY, .min = min_, .max = max_, .items = items_                          \
	}
#define IGNORED(name_)                                                                                                 \
	{                                                                                                              \
		.name = name_, .type = FIELD_IGNORED                                                                   \
	}
#define REQUIRED_TEXT(name_, min_, max_)                                                                               \
	{                                                                                                              \
		.name = name_, .type = FIELD_STRING, .min = min_, .max = max_, .required = true                        \
	}
#define END                                                                                                            \
	{                                                                                                              \
		.name = NULL                                                                                           \
	}

enum {
	MAX_ID = 128,
	MAX_PROMPTS = 128,
	MAX_TOKENS = 4 << 20,   /* of one prompt */
	MAX_TOKENIZE = 1 << 20, /* bytes; the answer is some fifty times as long and must fit one frame */
	MAX_GENERATED = 1000000,
	MAX_STEPS = 1000000000
};
#define MAX_TOKEN 2147483647.0

#define MODEL REQUIRED_TEXT("model", 1, MAX_ID)

/* --- what several requests share ------------------------------------------------------------ */

static const char *const all_choice[] = {"all", NULL};
static const char *const mean_choice[] = {"mean", NULL};
static const char *const false_choice[] = {"false", NULL};
static const char *const empty_choice[] = {"", NULL};

static const field token = COUNT("token", 0, MAX_TOKEN);
static const field token_array = ARRAY("tokens", 1, MAX_TOKENS, &token);
static const field text = {.name = "text", .type = FIELD_STRING, .nul = true};

static const field text_or_tokens[] = {
    {.name = "text", .type = FIELD_STRING, .nul = true}, ARRAY("tokens", 1, MAX_TOKENS, &token), END};
static const field prompts[] = {{.name = "text", .type = FIELD_STRING, .nul = true},
                                ARRAY("texts", 1, MAX_PROMPTS, &text),
                                ARRAY("tokens", 1, MAX_TOKENS, &token),
                                ARRAY("token lists", 1, MAX_PROMPTS, &token_array),
                                END};

static const field stop_text = TEXT("stop", 1, 256);
static const field stops[] = {TEXT("stop", 1, 256), ARRAY("stops", 0, 4, &stop_text), END};

static const field bias = RANGE("bias", -100, 100);

static const schema stream_options = {"StreamOptions",
                                      (const field[]){FLAG("include_usage"), IGNORED("include_obfuscation"), END}};

/* A step's importance weights are the mean over everything: the engine has no other per token. */
static const schema alpha_options = {
    "AlphaOptions", (const field[]){{.name = "top", .type = FIELD_INTEGER, .min = 1, .max = 1000, .required = true},
                                    CHOICE("layers", all_choice),
                                    CHOICE("aggregate", mean_choice),
                                    END}};

#define SAMPLING                                                                                                       \
	COUNT("max_tokens", 1, MAX_GENERATED), RANGE("temperature", 0, 2), ABOVE("top_p", 0, 1),                       \
	    COUNT("top_k", 0, 1 << 24), RANGE("min_p", 0, 1), ABOVE("repetition_penalty", 0, 10),                      \
	    RANGE("presence_penalty", -2, 2), RANGE("frequency_penalty", -2, 2),                                       \
	    {.name = "logit_bias", .type = FIELD_OBJECT, .max = 1024, .items = &bias},                                 \
	    {.name = "seed", .type = FIELD_INTEGER}, UNION("stop", stops), COUNT("logprobs", 0, 20), FLAG("stream"),   \
	    OBJECT("stream_options", stream_options), FLAG("timings"), OBJECT("alpha", alpha_options), IGNORED("user")

/* --- models ------------------------------------------------------------------------------------ */

static const char *const dtypes[] = {"fp32", "bf16", "int8", NULL};

const schema schema_model_load = {"ModelLoadRequest", (const field[]){CHOICE("dtype", dtypes), END}};

/* --- generation -------------------------------------------------------------------------------- */

const schema schema_completion = {
    "CompletionRequest", (const field[]){MODEL,
                                         {.name = "prompt", .type = FIELD_UNION, .items = prompts, .required = true},
                                         SAMPLING,
                                         COUNT("n", 1, 128),
                                         /* OpenAI's, and not offered: only the value that switches them off. */
                                         COUNT("best_of", 0, 1),
                                         {.name = "echo", .type = FIELD_BOOLEAN, .choices = false_choice},
                                         CHOICE("suffix", empty_choice),
                                         END}};

static const char *const policies[] = {"error", "clamp", "wrap", NULL};

const schema schema_session_create = {
    "SessionRequest", (const field[]){MODEL, UNION("prompt", text_or_tokens), FLAG("durable"), FLAG("explain"),
                                      COUNT("ttl_seconds", 1, 31536000), CHOICE("position_policy", policies), END}};

const schema schema_session_generate = {"SessionGenerateRequest",
                                        (const field[]){UNION("prompt", text_or_tokens), SAMPLING, END}};

const schema schema_session_append = {"SessionAppendRequest",
                                      (const field[]){{.name = "text", .type = FIELD_STRING, .required = true, .nul = true}, END}};

/* --- explanation --------------------------------------------------------------------------------- */

static const char *const aggregates[] = {"none", "mean", "rollout", NULL};
static const char *const methods[] = {"alpha", NULL};

static const field number = COUNT("number", 0, 65535);
static const field numbers[] = {CHOICE("all", all_choice), ARRAY("numbers", 1, 65536, &number), END};
static const field positions[] = {CHOICE("all", all_choice), COUNT("position", -1, MAX_TOKEN), END};
static const field round_name = TEXT("round", 1, 64);

#define SELECTION                                                                                                      \
	UNION("position", positions), UNION("layers", numbers), UNION("heads", numbers),                               \
	    ARRAY("rounds", 1, 16, &round_name), CHOICE("aggregate", aggregates)

const schema schema_session_alpha = {"SessionAlphaRequest", (const field[]){SELECTION, END}};

const schema schema_explain = {"ExplainRequest",
                               (const field[]){TEXT("model", 1, MAX_ID), UNION("input", text_or_tokens),
                                               TEXT("session", 1, MAX_ID), SELECTION, CHOICE("method", methods), END}};

/* --- tokens ------------------------------------------------------------------------------------------ */

const schema schema_tokenize = {
    "TokenizeRequest",
    (const field[]){
        MODEL, {.name = "text", .type = FIELD_STRING, .max = MAX_TOKENIZE, .required = true, .nul = true}, END}};

const schema schema_detokenize = {
    "DetokenizeRequest",
    (const field[]){
        MODEL, {.name = "tokens", .type = FIELD_ARRAY, .max = MAX_TOKENS, .items = &token, .required = true}, END}};

/* --- training ------------------------------------------------------------------------------------------ */

static const char *const auto_choice[] = {"auto", NULL};
static const char *const supervised[] = {"supervised", NULL};
static const char *const tokenizers[] = {"bytes", NULL};
static const char *const schedules[] = {"linear", "cosine", "constant", NULL};
static const char *const precisions[] = {"fp32", "bf16", NULL};

static const field epochs[] = {CHOICE("auto", auto_choice), COUNT("epochs", 1, 10000), END};
static const field batch_size[] = {CHOICE("auto", auto_choice), COUNT("blocks", 1, 65536), END};
static const field multiplier[] = {CHOICE("auto", auto_choice), ABOVE("factor", 0, 1000), END};

static const schema hyperparameters = {"Hyperparameters",
                                       (const field[]){UNION("n_epochs", epochs), UNION("batch_size", batch_size),
                                                       UNION("learning_rate_multiplier", multiplier), END}};
static const schema supervised_method = {"SupervisedMethod",
                                         (const field[]){OBJECT("hyperparameters", hyperparameters), END}};
static const schema method = {
    "FineTuningMethod", (const field[]){{.name = "type", .type = FIELD_STRING, .choices = supervised, .required = true},
                                        OBJECT("supervised", supervised_method),
                                        END}};

static const schema tokenizer = {
    "TokenizerOptions",
    (const field[]){{.name = "type", .type = FIELD_STRING, .choices = tokenizers, .required = true}, END}};

static const field beta = RANGE("beta", 0, 0.999999);
static const schema training = {"TrainingOptions", (const field[]){{.name = "config", .type = FIELD_OBJECT},
                                                                   OBJECT("tokenizer", tokenizer),
                                                                   COUNT("sequence_length", 2, 1 << 20),
                                                                   COUNT("batch_size", 1, 65536),
                                                                   COUNT("gradient_accumulation", 1, 65536),
                                                                   COUNT("max_steps", 1, MAX_STEPS),
                                                                   RANGE("learning_rate", 1e-12, 1),
                                                                   CHOICE("schedule", schedules),
                                                                   COUNT("warmup_steps", 0, MAX_STEPS),
                                                                   RANGE("weight_decay", 0, 1),
                                                                   ARRAY("betas", 2, 2, &beta),
                                                                   RANGE("clip", 0, 1e9),
                                                                   RANGE("label_smoothing", 0, 0.999),
                                                                   CHOICE("precision", precisions),
                                                                   FLAG("recompute"),
                                                                   COUNT("eval_every", 0, MAX_STEPS),
                                                                   COUNT("checkpoint_every", 0, MAX_STEPS),
                                                                   COUNT("keep_checkpoints", 1, 10000),
                                                                   END}};

static const field metadata_value = {.name = "value", .type = FIELD_STRING, .max = 512};

const schema schema_job_create = {
    "FineTuningJobRequest",
    (const field[]){MODEL,
                    TEXT("training_file", 1, MAX_ID), /* required but in a dry run */
                    TEXT("validation_file", 1, MAX_ID),
                    FLAG("dry_run"),
                    TEXT("suffix", 1, 64),
                    {.name = "seed", .type = FIELD_INTEGER},
                    OBJECT("hyperparameters", hyperparameters),
                    OBJECT("method", method),
                    {.name = "metadata", .type = FIELD_OBJECT, .max = 16, .items = &metadata_value},
                    IGNORED("integrations"),
                    OBJECT("additive", training),
                    END}};

const schema *const schema_all[] = {&schema_completion,
                                    &schema_session_create,
                                    &schema_session_generate,
                                    &schema_session_append,
                                    &schema_session_alpha,
                                    &schema_explain,
                                    &schema_tokenize,
                                    &schema_detokenize,
                                    &schema_job_create,
                                    &schema_model_load,
                                    NULL};
