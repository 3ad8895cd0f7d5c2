/* Templates are looked up by a digest of what their program does (chat_program.h). The programs themselves are in
 * tests/data/chat, with the texts that they make of conversations. */
#include "engine/text/chat_forms.h"

#include "engine/text/chat_program.h"

#define CHATML_TURNS                                                                                                   \
	.turns = {{"<|im_start|>system\n", "<|im_end|>\n"},                                                            \
	          {"<|im_start|>user\n", "<|im_end|>\n"},                                                              \
	          {"<|im_start|>assistant\n", "<|im_end|>\n"}},                                                        \
	.answer = "<|im_start|>assistant\n", .stops = {"<|im_end|>"}
#define LLAMA_3_TURN(role)                                                                                             \
	{                                                                                                              \
		"<|start_header_id|>" role "<|end_header_id|>\n\n", "<|eot_id|>"                                       \
	}
#define LLAMA_3                                                                                                        \
	.begin = CHAT_BEGIN, .turns = {LLAMA_3_TURN("system"), LLAMA_3_TURN("user"), LLAMA_3_TURN("assistant")},       \
	.answer = "<|start_header_id|>assistant<|end_header_id|>\n\n", .stops = {"<|eot_id|>"}, .rules = CHAT_TRIMS
/* The date is the templates' own, for renderers without a clock: a conversation has the same text every day. */
#define LLAMA_3_1                                                                                                      \
	LLAMA_3, .preamble = "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n",                     \
	         .default_system = "", .tools = &llama_tools
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

#define CALL_FORMAT "{\"name\": <function-name>, \"arguments\": <args-json-object>}"

static const chat_tools plain_tools = {
    .gap = "\n\n",
    .list = {"Tools:", NULL},
    .tool = {"\n", NULL},
    .call = {"<tool_call>", "</tool_call>"},
    .key = "arguments",
    .between = "\n",
    .result = {"Tool: ", "\n"},
    .stop = "\nTool:",
};
static const chat_tools hermes_tools = {
    .gap = "\n\n",
    .list = {"# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with "
             "function signatures within <tools></tools> XML tags:\n<tools>",
             "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
             "<tool_call></tool_call> XML tags:\n<tool_call>\n" CALL_FORMAT "\n</tool_call>"},
    .tool = {"\n", NULL},
    .call = {"<tool_call>\n", "\n</tool_call>"},
    .key = "arguments",
    .between = "\n",
    .results = {"<|im_start|>user", "<|im_end|>\n"},
    .result = {"\n<tool_response>\n", "\n</tool_response>"},
};
static const chat_tools llama_tools = {
    .preamble = "Environment: ipython\n",
    .with_user = true,
    .list = {"Given the following functions, please respond with a JSON for a function call with its proper arguments "
             "that best answers the given prompt.\n\nRespond in the format {\"name\": function name, \"parameters\": "
             "dictionary of argument name and its value}.Do not use variables.\n\n",
             NULL},
    .tool = {NULL, "\n\n"},
    .indent = 4,
    .key = "parameters",
    .single = true,
    .result = {"<|start_header_id|>ipython<|end_header_id|>\n\n", "<|eot_id|>"},
    .json_results = true,
};

static const chat_tools mistral_tools = {
    .before_user = true,
    .list = {"[AVAILABLE_TOOLS] [", "][/AVAILABLE_TOOLS]"},
    .form = CHAT_TOOL_MEMBERS,
    .separator = ", ",
    .alone = true,
    .calls = {"[TOOL_CALLS] [", "]"},
    .key = "arguments",
    .id = ", \"id\": \"",
    .between = ", ",
    .result = {"[TOOL_RESULTS] {\"content\": ", "\"}[/TOOL_RESULTS]"},
    .result_id = ", \"call_id\": \"",
};

/* The template "tool_use" of Hermes 2 Pro and 3. */
static const chat_tools tool_use_tools = {
    .before_all = true,
    .list =
        {"<|im_start|>system\nYou are a function calling AI model. You are provided with function signatures within "
         "<tools></tools> XML tags. You may call one or more functions to assist with the user query. Don't make "
         "assumptions about what values to plug into functions. Here are the available tools: <tools> ",
         " </tools>Use the following pydantic model json schema for each tool call you will make: {\"properties\": "
         "{\"name\": {\"title\": \"Name\", \"type\": \"string\"}, \"arguments\": {\"title\": \"Arguments\", "
         "\"type\": \"object\"}}, \"required\": [\"name\", \"arguments\"], \"title\": \"FunctionCall\", "
         "\"type\": \"object\"}}\nFor each function call return a json object with function name and arguments "
         "within <tool_call></tool_call> XML tags as follows:\n<tool_call>\n{\"name\": <function-name>, "
         "\"arguments\": <args-dict>}\n</tool_call><|im_end|>\n"},
    .form = CHAT_TOOL_SIGNATURE,
    .separator = "\n",
    .alone = true,
    .call = {"<tool_call>\n", "\n</tool_call>"},
    .key = "arguments",
    .between = "\n",
    .results = {"<|im_start|>tool\n", "<|im_end|>"},
    .result = {"<tool_response>\n", "\n</tool_response>"},
    .after_result = "\n",
};

const chat_form chat_forms_plain = {
    .name = "plain",
    .turns = {{NULL, "\n\n"}, {"User: ", "\n"}, {"Assistant: ", "\n"}},
    .answer = "Assistant:",
    .stops = {"\nUser:"},
    .rules = CHAT_TRIMS,
    .tools = &plain_tools,
};

static const chat_form chatml = {.name = "chatml", CHATML_TURNS};
static const chat_form chatml_begin = {.name = "chatml", .begin = CHAT_BEGIN, CHATML_TURNS};
static const chat_form tool_use = {.name = "hermes", .begin = CHAT_BEGIN, CHATML_TURNS, .tools = &tool_use_tools};
static const chat_form qwen_1_5 = {.name = "qwen-1.5", CHATML_TURNS, .default_system = "You are a helpful assistant"};
static const chat_form qwen_2 = {.name = "qwen-2", CHATML_TURNS, .default_system = "You are a helpful assistant."};
static const chat_form qwen_2_5 = {.name = "qwen-2.5",
                                   CHATML_TURNS,
                                   .default_system =
                                       "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.",
                                   .tools = &hermes_tools};
static const chat_form qwen_2_5_base = {
    .name = "qwen-2.5", CHATML_TURNS, .default_system = "You are a helpful assistant.", .tools = &hermes_tools};
static const chat_form qwen_3 = {.name = "qwen-3", CHATML_TURNS, .rules = CHAT_THINKS, .tools = &hermes_tools};
static const chat_form smollm_2 = {.name = "smollm-2",
                                   CHATML_TURNS,
                                   .default_system =
                                       "You are a helpful AI assistant named SmolLM, trained by Hugging Face"};
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
static const chat_form llama_3_1 = {.name = "llama-3.1", LLAMA_3_1};
static const chat_form llama_3_2 = {.name = "llama-3.2", LLAMA_3_1};
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
#define MISTRAL_V3                                                                                                     \
	.name = "mistral-v3", .begin = CHAT_BEGIN, .turns = {{NULL, "\n\n"}, {"[INST] ", "[/INST]"}, {" ", CHAT_END}}, \
	.stops = {CHAT_END}, .tools = &mistral_tools
static const chat_form mistral_v3 = {MISTRAL_V3, .rules = CHAT_ALTERNATES | CHAT_FOLDS_LAST | CHAT_TRIMS_ANSWERS};
static const chat_form mistral_v3_first = {MISTRAL_V3, .rules = CHAT_ALTERNATES | CHAT_FOLDS | CHAT_TRIMS_ANSWERS};
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
    {0x8ba09d39aa2c6bf5, &chatml},
    {0x3c77ef5963593888, &chatml_begin},
    {0x890774321917fcfa, &tool_use},
    {0xb69d6fa90e168c07, &tool_use},
    {0xc3d5eac599433acd, &qwen_1_5},
    {0x71ef3492cdd5fdd3, &qwen_2},
    {0x4fe6efd851f0f8b0, &smollm_2},
    {0x644114f2846a583e, &llama_2},
    {0x72988483c7369e25, &llama_3},
    {0xf99c31519417e7ea, &llama_3_answers},
    {0xba1d08981bb58ed4, &mistral_0_1},
    {0xedeaf173199eb486, &mistral_0_2},
    {0x03f868c25825e53e, &mistral_v1},
    {0x2d2c2128410ad2a1, &mistral_v3},
    {0x100c4c824bebc981, &mistral_v3_first},
    {0xb1b2d619bc17e1dc, &zephyr},
    {0x204769f3ab544938, &gemma},
    {0x05a1e4f5fb5880ac, &phi_3_mini},
    {0x7670c3aba36f421a, &phi_3_medium},
    {0x1a98bc0756d151d6, &phi_3_small},
    {0xe95a28ab9ffe1045, &phi_3_5},
    {0x81870532f7ff9cc2, &vicuna},
    {0xd519a3dbf447cb65, &orca_vicuna},
    {0x142b3609a6bed82c, &deepseek_2},
    {0x139be8767a10d955, &openchat},
    {0xf747c4acdea85e44, &monarch},
    {0x0a033e910ff81f19, &granite_3},
    {0xe5b6b54060b30dff, &qwen_2_5},
    {0x8bea677696b3a4da, &qwen_2_5_base},
    {0x1f93fc5ace0f643a, &llama_3_1},
    {0x6c0bdb34cde57cfe, &llama_3_2},
    {0x61d361b15125921b, &qwen_3},
    {0x5e605d45c8db678a, &qwen_3},
    {0x84af9d74d4c6b350, &chatml} /* with add_generation_prompt set first */,
};

status chat_forms_find(const char *program, bool functions, const chat_form **out)
{
	uint64_t digest;
	*out = NULL;
	TRY(chat_program_digest(program, &digest));
	for (size_t i = 0; i < sizeof published / sizeof *published && !*out; i++) {
		const chat_form *f = published[i].form;
		const bool fits = functions ? f->tools != NULL : !f->tools || !f->tools->before_all;
		*out = published[i].digest == digest && fits ? f : NULL;
	}
	return STATUS_OK;
}
