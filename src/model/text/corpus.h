/*
 * Sequences of token ids from texts, id lists or a random generator.
 *
 * A document is a text file, a row of a JSONL, JSON or CSV file, or a line of an id list. A
 * document is cut into windows of seq_len tokens. The window at the end of a document may be
 * shorter, but has at least 2 tokens. Ids are written to a temporary file in $TMPDIR (or /var/tmp,
 * or /tmp).
 *
 * With max_tokens, only the needed part of a document is read and tokenized, and the last windows
 * are shortened so that the number of tokens is exact.
 */
#ifndef KVD_MODEL_TEXT_CORPUS_H
#define KVD_MODEL_TEXT_CORPUS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"
#include "model/text/tokenizer.h"

typedef struct {
    /* .jsonl, .json (list), .csv (with a header row); any other is plain text. */
    const char *const *text;
    size_t n_text;
    /*
     * JSON key or CSV column of the text; "a,b" joins two by a line feed. NULL means "text", or the
     * value itself in a JSON list of strings.
     */
    const char *field;
    /* Value of `field` for each of the n_texts texts; NULL means that `field` applies to all. */
    const char *const *fields;
    /* The special tokens that the tokenizer adds around a document are left out. */
    bool no_special;
    const char *ids; /* CSV file of token ids, one sequence per line, or NULL */
    size_t n_random;
    uint64_t seed;
    /* Number of tokens to take; 0 means all. If the source has fewer, opening fails. */
    size_t max_tokens;
    bool by_text;   /* max_tokens applies to each text, not to their sum */
    size_t seq_len; /* tokens per window, 2 to max_positions */
    size_t vocab_size;
} kvd_corpus_spec;

/*
 * Writes the name of the corpus in tables: `given` (option --label) or, if that is NULL, a name
 * such as "a+b" for "a.txt" and "b.jsonl", "a+2 more", or "random".
 */
void kvd_corpus_label(const kvd_corpus_spec *spec, const char *given, char *label, size_t size);

typedef struct kvd_corpus kvd_corpus;

/*
 * Exactly one of spec->text, spec->ids and spec->n_random must be set. The tokenizer may be NULL
 * without texts. On failure returns NULL and fills *err. Empty input is an error.
 */
kvd_corpus *kvd_corpus_open(const kvd_corpus_spec *spec, const kvd_tokenizer *tok, kvd_err *err);
void kvd_corpus_close(kvd_corpus *c);

size_t kvd_corpus_n_tokens(const kvd_corpus *c);
size_t kvd_corpus_n_sequences(const kvd_corpus *c);
size_t kvd_corpus_n_documents(const kvd_corpus *c);
/*
 * kvd_corpus_text_first returns the number of sequences before each text, followed by the number of
 * all sequences. Without texts, there is one text.
 */
size_t kvd_corpus_n_texts(const kvd_corpus *c);
const size_t *kvd_corpus_text_first(const kvd_corpus *c);
/* Returns how many tokens were left out because each would have been a window of one token. */
size_t kvd_corpus_n_dropped(const kvd_corpus *c);
/* kvd_corpus_offset returns the number of tokens in all sequences before s. */
size_t kvd_corpus_length(const kvd_corpus *c, size_t s);
size_t kvd_corpus_offset(const kvd_corpus *c, size_t s);
/*
 * For a batch of the sequences first .. first + n - 1: offset [n + 1] becomes the number of the
 * batch's tokens before each sequence, and at the end of all its tokens.
 */
void kvd_corpus_offsets(const kvd_corpus *c, size_t first, size_t n, size_t *offset);
const char *kvd_corpus_hash(const kvd_corpus *c);
/*
 * Returns the hash of a corpus of only the first n_sequences sequences. Reads the ids. Returns 0,
 * or -1 with *err.
 */
int kvd_corpus_hash_first(kvd_corpus *c, size_t n_sequences, char hash[40], kvd_err *err);

/*
 * Writes the ids of sequences first .. first+n-1, one after another, to `id`. Returns 0, or -1 with
 * *err.
 */
int kvd_corpus_read(kvd_corpus *c, size_t first, size_t n, uint32_t *id, kvd_err *err);

/*
 * Returns how many sequences from `first` on have at most max_tokens tokens together, but at least
 * 1 if any is left.
 */
size_t kvd_corpus_batch(const kvd_corpus *c, size_t first, size_t max_tokens);

#endif
