/* The number of threads is part of the result, since sums of single precision depend on their order: it is fixed. */
#include "engine/text/sentencepiece/sp_train.h"

#include <sentencepiece_trainer.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <unordered_map>

namespace
{

class sentences final : public sentencepiece::SentenceIterator
{
      public:
	sentences(sp_train_next *next, void *context) : next_(next), context_(context)
	{
		Next();
	}
	bool done() const override
	{
		return done_;
	}
	void Next() override
	{
		const char *text;
		size_t bytes;
		done_ = !next_(context_, &text, &bytes);
		if (!done_)
			value_.assign(text, bytes);
	}
	const std::string &value() const override
	{
		return value_;
	}
	sentencepiece::util::Status status() const override
	{
		return {};
	}

      private:
	sp_train_next *next_;
	void *context_;
	std::string value_;
	bool done_ = false;
};

std::unordered_map<std::string, std::string> arguments(const sp_train_options &o)
{
	char coverage[32];
	std::snprintf(coverage, sizeof coverage, "%.17g", o.character_coverage);
	std::unordered_map<std::string, std::string> all = {
	    {"model_type", o.model_type},
	    {"vocab_size", std::to_string(o.vocab_size)},
	    {"character_coverage", coverage},
	    {"normalization_rule_name", o.normalization},
	    {"remove_extra_whitespaces", std::strcmp(o.normalization, "identity") == 0 ? "false" : "true"},
	    {"byte_fallback", o.byte_fallback ? "true" : "false"},
	    {"pad_id", "0"},
	    {"eos_id", "1"},
	    {"unk_id", "2"},
	    {"bos_id", "-1"},
	    {"num_threads", "2"},
	    {"max_sentence_length", "1048576"},
	    {"minloglevel", "2"}};
	if (o.at_most)
		all["hard_vocab_limit"] = "false";
	if (o.tab)
		all["user_defined_symbols"] = "\t";
	return all;
}

/* "Internal: file(line) [condition] text": the text. */
void explain(const std::string &message, char *reason, size_t bytes)
{
	size_t at = message.rfind("] ");
	std::snprintf(reason, bytes, "%s", message.c_str() + (at == std::string::npos ? 0 : at + 2));
}

} // namespace

bool sp_train(const sp_train_options *o, sp_train_next *next, void *context, char **model, size_t *bytes, char *reason,
              size_t reason_bytes)
{
	*model = nullptr;
	reason[0] = 0;
	try {
		sentences all(next, context);
		std::string made;
		auto status = sentencepiece::SentencePieceTrainer::Train(arguments(*o), &all, &made);
		if (!status.ok()) {
			explain(status.ToString(), reason, reason_bytes);
			return false;
		}
		*model = static_cast<char *>(std::malloc(made.size() + 1));
		if (*model)
			std::memcpy(*model, made.c_str(), made.size() + 1);
		*bytes = made.size();
	} catch (const std::bad_alloc &) {
	} catch (const std::exception &e) {
		std::snprintf(reason, reason_bytes, "%s", e.what());
	} catch (...) {
		std::snprintf(reason, reason_bytes, "the library failed");
	}
	return *model;
}
