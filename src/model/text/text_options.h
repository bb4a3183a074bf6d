/* Command-line options of programs that read a model and texts. */
#ifndef KVD_MODEL_TEXT_TEXT_OPTIONS_H
#define KVD_MODEL_TEXT_TEXT_OPTIONS_H

#include "common/options.h"

enum { KVD_LABEL_BYTES = 63 };

#define KVD_OPTION_MODEL(T)                                                                        \
    {                                                                                              \
        "MODEL", .positional = true, .type = KVD_OPT_TEXT, KVD_INTO(T, model),                     \
                 .help = "Local Hugging Face folder, NAME.safetensors, NAME.gguf or llama2.c's "   \
                         "NAME.bin"                                                                \
    }
/* Defines the options for texts. `others` lists the options that exclude --text. */
#define KVD_OPTIONS_TEXT(T, others)                                                                \
    {"text",                                                                                       \
     .type = KVD_OPT_TEXTS,                                                                        \
     .arg = "FILE",                                                                                \
     KVD_INTO_LIST(T, text, n_text),                                                               \
     .excludes = others,                                                                           \
     .help = "Text: .jsonl, .json (a list), .csv (header row); any other file is one plain "       \
             "document. With --text, further arguments after MODEL are texts too"},                \
    {                                                                                              \
        "TEXT", .positional = true, .type = KVD_OPT_TEXTS, KVD_INTO_LIST(T, text, n_text),         \
                .requires = "text"                                                                 \
    }
#define KVD_OPTION_IDS(T, others)                                                                  \
    {                                                                                              \
        "ids", .type = KVD_OPT_TEXT, .arg = "FILE.csv", KVD_INTO(T, ids), .excludes = others,      \
               .help = "Token ids, one sequence per line; no tokenizer needed"                     \
    }
#define KVD_FIELD_HELP "JSON key or CSV column of the text; A,B joins the texts of two"
#define KVD_OPTION_FIELD(T)                                                                        \
    {                                                                                              \
        "field", .type = KVD_OPT_TEXT, .arg = "NAME", KVD_INTO(T, field), .requires = "text",      \
                 .otherwise = "text", .help = KVD_FIELD_HELP                                       \
    }
#define KVD_OPTION_NO_SPECIAL(T)                                                                   \
    {                                                                                              \
        "no-special", .type = KVD_OPT_FLAG, KVD_INTO(T, no_special), .requires = "text",           \
                      .help = "Leave out the special tokens (BOS, ...) that the tokenizer puts "   \
                              "around a document"                                                  \
    }
#define KVD_OPTION_TOKENS(T, usual, text)                                                          \
    {                                                                                              \
        "tokens", .type = KVD_OPT_WHOLE, KVD_INTO(T, tokens), .low = 2, .high = 281474976710656.0, \
                  .otherwise = usual, .help = text                                                 \
    }
#define KVD_OPTION_SEQ_LEN(T)                                                                      \
    {                                                                                              \
        "seq-len", .type = KVD_OPT_WHOLE, KVD_INTO(T, seq_len), .low = 2, .high = 1 << 30,         \
                   .otherwise = "512 tokens, or the model's longest",                              \
                   .help = "Cut documents into sequences of N tokens"                              \
    }
#define KVD_OPTION_LABEL(T, usual)                                                                 \
    {                                                                                              \
        "label", .type = KVD_OPT_TEXT, .arg = "NAME", KVD_INTO(T, label), .high = KVD_LABEL_BYTES, \
                 .otherwise = usual, .help = "Name of these texts in tables and figures"           \
    }
#define KVD_OPTION_BATCH(T, usual)                                                                 \
    {                                                                                              \
        "batch", .type = KVD_OPT_WHOLE, KVD_INTO(T, batch), .low = 1, .high = 1 << 30,             \
                 .otherwise = usual, .help = "Number of tokens in one pass; at least one sequence" \
    }
#define KVD_OPTION_COMPUTE(T)                                                                      \
    {                                                                                              \
        "compute", .type = KVD_OPT_WORD, .words = kvd_compute_words, KVD_INTO(T, compute),         \
                   .initial = "f32",                                                               \
                   .help = "Multiply matrices in float32, or on a GPU in bf16 with float32 sums, " \
                           "which is faster"                                                       \
    }
#define KVD_OPTION_RESUME(T, text)                                                                 \
    {                                                                                              \
        "resume", .type = KVD_OPT_FLAG, KVD_INTO(T, resume), .help = text                          \
    }

#endif
