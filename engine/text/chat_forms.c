/* Templates are looked up by a digest of their text, in which a line end may be a character or Jinja's escape for one:
 * both are published. Nothing else is normalised, since in a template white space is text. The programs themselves are
 * in tests/data/chat, with what they make of conversations. */
#include "engine/text/chat_forms.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/digest.h"
#include "engine/base/memory.h"

#define CHATML_TURNS                                                                                                   \
	.turns = {{"<|im_start|>system\n", "<|im_end|>\n"},                                                            \
	          {"<|im_start|>user\n", "<|im_end|>\n"},                                                              \
	          {"<|im_start|>assistant\n", "<|im_end|>\n"}},                                                        \
	.answer = "<|im_start|>assistant\n", .stops = {"<|im_end|>"}
#define CHATML_SYSTEM(text) .unasked = "<|im_start|>system\n" text "<|im_end|>\n"
#define LLAMA_3_TURN(role)                                                                                             \
	{                                                                                                              \
		"<|start_header_id|>" role "<|end_header_id|>\n\n", "<|eot_id|>"                                       \
	}
#define LLAMA_3                                                                                                        \
	.begin = CHAT_BEGIN, .turns = {LLAMA_3_TURN("system"), LLAMA_3_TURN("user"), LLAMA_3_TURN("assistant")},       \
	.answer = "<|start_header_id|>assistant<|end_header_id|>\n\n", .stops = {"<|eot_id|>"}, .rules = CHAT_TRIMS
#define PHI_3_TURNS                                                                                                    \
	.turns = {{"<|system|>\n", "<|end|>\n"}, {"<|user|>\n", "<|end|>\n"}, {"<|assistant|>\n", "<|end|>\n"}},       \
	.answer = "<|assistant|>\n", .stops = {"<|end|>"}
#define PHI_3_PAIRS                                                                                                    \
	.turns = {[CHAT_USER] = {"<|user|>\n", "<|end|>\n<|assistant|>\n"}, [CHAT_ASSISTANT] = {NULL, "<|end|>\n"}},   \
	.stops = {"<|end|>"}, .rules = CHAT_NO_SYSTEM
#define GRANITE_TURN(role)                                                                                             \
	{                                                                                                              \
		"<|start_of_role|>" role "<|end_of_role|>", "<|end_of_text|>\n"                                        \
	}
#define OPENCHAT_TURN(role)                                                                                            \
	{                                                                                                              \
		"GPT4 Correct " role ": ", "<|end_of_turn|>"                                                           \
	}

const chat_form chat_forms_plain = {
    .name = "plain",
    .turns = {{NULL, "\n\n"}, {"User: ", "\n"}, {"Assistant: ", "\n"}},
    .answer = "Assistant:",
    .stops = {"\nUser:"},
    .rules = CHAT_TRIMS,
};

static const chat_form chatml = {.name = "chatml", CHATML_TURNS};
static const chat_form qwen_1_5 = {.name = "qwen-1.5", CHATML_TURNS, CHATML_SYSTEM("You are a helpful assistant")};
static const chat_form qwen_2 = {.name = "qwen-2", CHATML_TURNS, CHATML_SYSTEM("You are a helpful assistant.")};
static const chat_form smollm_2 = {
    .name = "smollm-2",
    CHATML_TURNS,
    CHATML_SYSTEM("You are a helpful AI assistant named SmolLM, trained by Hugging Face")};
static const chat_form llama_2 = {
    .name = "llama-2",
    .turns = {{"<<SYS>>\n", "\n<</SYS>>\n\n"}, {CHAT_BEGIN "[INST] ", " [/INST]"}, {" ", " " CHAT_END}},
    .stops = {CHAT_END},
    .rules = CHAT_TRIMS | CHAT_ALTERNATES | CHAT_FOLDS,
};
static const chat_form llama_3 = {.name = "llama-3", LLAMA_3};
static const chat_form llama_3_answers = {/* the first edition writes the answer's header in any case */
                                          .name = "llama-3",
                                          LLAMA_3,
                                          .unanswered = "<|start_header_id|>assistant<|end_header_id|>\n\n"};
static const chat_form mistral_0_1 = {
    .name = "mistral-0.1",
    .begin = CHAT_BEGIN,
    .turns = {[CHAT_USER] = {"[INST] ", " [/INST]"}, [CHAT_ASSISTANT] = {NULL, CHAT_END " "}},
    .stops = {CHAT_END},
    .rules = CHAT_ALTERNATES | CHAT_NO_SYSTEM,
};
static const chat_form mistral_0_2 = {
    .name = "mistral-0.2",
    .begin = CHAT_BEGIN,
    .turns = {[CHAT_USER] = {"[INST] ", " [/INST]"}, [CHAT_ASSISTANT] = {NULL, CHAT_END}},
    .stops = {CHAT_END},
    .rules = CHAT_ALTERNATES | CHAT_NO_SYSTEM,
};
static const chat_form mistral_v1 = {
    .name = "mistral-v1",
    .begin = CHAT_BEGIN,
    .turns = {{NULL, "\n\n"}, {" [INST] ", " [/INST]"}, {" ", CHAT_END}},
    .stops = {CHAT_END},
    .rules = CHAT_ALTERNATES | CHAT_FOLDS,
};
static const chat_form zephyr = {
    .name = "zephyr",
    .turns = {{"<|system|>\n", CHAT_END "\n"}, {"<|user|>\n", CHAT_END "\n"}, {"<|assistant|>\n", CHAT_END "\n"}},
    .answer = "<|assistant|>\n",
    .stops = {CHAT_END},
};
static const chat_form gemma = {
    .name = "gemma",
    .begin = CHAT_BEGIN,
    .turns = {[CHAT_USER] = {"<start_of_turn>user\n", "<end_of_turn>\n"},
              [CHAT_ASSISTANT] = {"<start_of_turn>model\n", "<end_of_turn>\n"}},
    .answer = "<start_of_turn>model\n",
    .stops = {"<end_of_turn>"},
    .rules = CHAT_TRIMS | CHAT_ALTERNATES | CHAT_NO_SYSTEM,
};
static const chat_form phi_3_mini = {.name = "phi-3-mini", .begin = CHAT_BEGIN, PHI_3_PAIRS};
static const chat_form phi_3_medium = {.name = "phi-3-medium", PHI_3_PAIRS};
static const chat_form phi_3_small = {.name = "phi-3-small", .begin = CHAT_BEGIN, PHI_3_TURNS, .unanswered = CHAT_END};
static const chat_form phi_3_5 = {.name = "phi-3.5", PHI_3_TURNS, .unanswered = CHAT_END, .rules = CHAT_SKIPS};
static const chat_form vicuna = {
    .name = "vicuna",
    .turns = {{NULL, "\n\n"}, {"USER: ", "\n"}, {"ASSISTANT: ", "</s>\n"}},
    .answer = "ASSISTANT:",
    .stops = {"</s>"},
};
static const chat_form orca_vicuna = {
    .name = "orca-vicuna",
    .turns = {{"SYSTEM: ", "\n"}, {"USER: ", "\n"}, {"ASSISTANT: ", "</s>\n"}},
    .answer = "ASSISTANT:",
    .stops = {"</s>"},
};
static const chat_form deepseek_2 = {
    .name = "deepseek-2",
    .begin = CHAT_BEGIN,
    .turns = {{NULL, "\n\n"}, {"User: ", "\n\n"}, {"Assistant: ", CHAT_END}},
    .answer = "Assistant:",
    .stops = {CHAT_END},
};
static const chat_form openchat = {
    .name = "openchat",
    .begin = CHAT_BEGIN,
    .turns = {OPENCHAT_TURN("System"), OPENCHAT_TURN("User"), OPENCHAT_TURN("Assistant")},
    .answer = "GPT4 Correct Assistant:",
    .stops = {"<|end_of_turn|>"},
};
static const chat_form monarch = {
    .name = "monarch",
    .turns = {{CHAT_BEGIN "system\n", CHAT_END "\n"},
              {CHAT_BEGIN "user\n", CHAT_END "\n"},
              {CHAT_BEGIN "assistant\n", CHAT_END "\n"}},
    .answer = CHAT_BEGIN "assistant\n",
    .stops = {CHAT_END},
};
static const chat_form granite_3 = {
    .name = "granite-3",
    .turns = {GRANITE_TURN("system"), GRANITE_TURN("user"), GRANITE_TURN("assistant")},
    .answer = "<|start_of_role|>assistant<|end_of_role|>",
    .stops = {"<|end_of_text|>"},
};

static const struct {
	uint64_t digest;
	const chat_form *form;
} published[] = {
    {0xa04f41d813a07b13, &chatml},          {0x20f20c2b5139eaee, &qwen_1_5},     {0xd5d943bd0bd9082f, &qwen_2},
    {0x99ab995e9629dacd, &smollm_2},        {0xcb7c5112dfc4a3b0, &llama_2},      {0x9799ad6e2dea0594, &llama_3},
    {0xb97891b7adc1beb8, &llama_3_answers}, {0xb7f52373b11c60d7, &mistral_0_1},  {0xa5d004210ebce758, &mistral_0_2},
    {0xfa42ef759a4066ef, &mistral_v1},      {0x1db34e9fc60441d8, &zephyr},       {0x2c2e86beabccd2a4, &gemma},
    {0x551cbfd01fcc4680, &phi_3_mini},      {0x874eeb59684ce46e, &phi_3_medium}, {0x0b89d0be2a99c9d6, &phi_3_small},
    {0xcd8aff863abd4554, &phi_3_5},         {0x6d9297f101b02320, &vicuna},       {0x769aa78302422fcd, &orca_vicuna},
    {0xf64ecff9c8ef587d, &deepseek_2},      {0x200a40db4b06187d, &openchat},     {0x10b89492565d2c2a, &monarch},
    {0xad20145afdf4bf61, &granite_3},
};

static status digest_of(const char *program, uint64_t *out)
{
	size_t n = 0;
	char *text = memory_new(strlen(program) + 1, 1);
	if (!text)
		return STATUS_NOMEM;
	for (const char *p = program; *p; p++) {
		bool escape = p[0] == '\\' && p[1] == 'n';
		if (*p != '\r')
			text[n++] = escape ? '\n' : *p;
		p += escape;
	}
	while (n > 0 && (text[n - 1] == '\n' || text[n - 1] == ' '))
		n--;
	*out = digest_bytes(text, n);
	free(text);
	return STATUS_OK;
}

status chat_forms_find(const char *program, const chat_form **out)
{
	uint64_t digest;
	*out = NULL;
	TRY(digest_of(program, &digest));
	for (size_t i = 0; i < sizeof published / sizeof *published && !*out; i++)
		*out = published[i].digest == digest ? published[i].form : NULL;
	return STATUS_OK;
}
