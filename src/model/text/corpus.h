/*
 * Sequences of token ids from texts, id lists or a random generator.
 *
 * A document (a text file, a row of a JSONL, JSON or CSV file, or a line of ids) is cut into
 * windows of seq_len tokens. Ids are written to a temporary file in $TMPDIR (or /var/tmp, or /tmp).
 */
#ifndef KVD_MODEL_TEXT_CORPUS_H
#define KVD_MODEL_TEXT_CORPUS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"
#include "model/text/tokenizer.h"

typedef struct {
    /*
     * Paths of the texts: .jsonl, .json (a list) or .csv (with a header row), otherwise plain text.
     */
    const char *const *text;
    size_t n_text;
    /* JSON key or CSV column of the text; "a,b" joins two columns. */
    const char *field;
    /* Value of `field` for each text, or NULL if `field` applies to all texts. */
    const char *const *fields;
    /* True if special tokens, such as the begin-of-text token, are left out. */
    bool no_special;
    const char *ids; /* CSV file of token ids, one sequence per line, or NULL */
    size_t n_random;
    uint64_t seed;
    /* Largest number of tokens to take, 0 for all. */
    size_t max_tokens;
    bool by_text;   /* max_tokens limits each text, not their sum */
    size_t seq_len; /* tokens per window, 2 to max_positions */
    size_t vocab_size;
} kvd_corpus_spec;

/*
 * Writes the corpus's name for tables: `given` or, if NULL, a name made from its files, such as
 * "a+b" for a.txt and b.jsonl.
 */
void kvd_corpus_label(const kvd_corpus_spec *spec, const char *given, char *label, size_t size);

typedef struct kvd_corpus kvd_corpus;

/*
 * Opens a corpus; exactly one of spec->text, spec->ids and spec->n_random must be set. On failure,
 * also for empty input, returns NULL and fills *err.
 */
kvd_corpus *kvd_corpus_open(const kvd_corpus_spec *spec, const kvd_tokenizer *tok, kvd_err *err);
void kvd_corpus_close(kvd_corpus *c);

size_t kvd_corpus_n_tokens(const kvd_corpus *c);
size_t kvd_corpus_n_sequences(const kvd_corpus *c);
size_t kvd_corpus_n_documents(const kvd_corpus *c);
/*
 * Returns the number of texts. kvd_corpus_text_first returns the number of sequences before each
 * text.
 */
size_t kvd_corpus_n_texts(const kvd_corpus *c);
const size_t *kvd_corpus_text_first(const kvd_corpus *c);
/* Returns the number of tokens that were left out, because windows must have at least 2 tokens. */
size_t kvd_corpus_n_dropped(const kvd_corpus *c);
/*
 * Returns the number of tokens in sequence s. kvd_corpus_offset returns the number of tokens before
 * sequence s.
 */
size_t kvd_corpus_length(const kvd_corpus *c, size_t s);
size_t kvd_corpus_offset(const kvd_corpus *c, size_t s);
/*
 * Fills offset [n + 1] for sequences first .. first + n - 1: number of tokens before each one
 * within the batch, then the number of all tokens.
 */
void kvd_corpus_offsets(const kvd_corpus *c, size_t first, size_t n, size_t *offset);
/* Returns the XXH3-128 hash of all token ids and window lengths as text, "xxh3:...". */
const char *kvd_corpus_hash(const kvd_corpus *c);
/*
 * Computes the hash as if the corpus had only its first n_sequences sequences. Returns 0, or -1
 * with *err.
 */
int kvd_corpus_hash_first(kvd_corpus *c, size_t n_sequences, char hash[40], kvd_err *err);

/* Writes the ids of sequences first .. first+n-1 to `id`. Returns 0, or -1 with *err. */
int kvd_corpus_read(kvd_corpus *c, size_t first, size_t n, uint32_t *id, kvd_err *err);

/*
 * Returns how many consecutive sequences, from `first` on, have at most max_tokens tokens together.
 */
size_t kvd_corpus_batch(const kvd_corpus *c, size_t first, size_t max_tokens);

#endif
