/* Sequences of token ids from texts, id lists or a random generator.
 *
 * A document is cut into sequences of seq_len tokens. Ids are in a temporary file in $TMPDIR. */
#ifndef KVD_MODEL_TEXT_CORPUS_H
#define KVD_MODEL_TEXT_CORPUS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"
#include "common/run.h"
#include "model/text/tokenizer.h"

typedef struct {
    /* paths of texts: .jsonl, .json (a list) or .csv (with a header), otherwise plain text */
    const char *const *text;
    size_t n_text;
    /* JSON key or CSV column of the text; "a,b" joins two */
    const char *field;
    /* [n_text] JSON key or CSV column of the text in each file; NULL: `field` is used for all
     * files */
    const char *const *fields;
    /* true if special tokens, such as begin-of-text, are left out */
    bool no_special;
    const char *ids; /* CSV file of token ids, one sequence per line, or NULL */
    size_t n_random;
    uint64_t seed;
    /* largest number of tokens in the corpus; 0: no limit */
    size_t max_tokens;
    bool by_text;   /* max_tokens limits each text, not their sum */
    size_t seq_len; /* tokens per window, 2 to max_positions */
    size_t vocab_size;
} kvd_corpus_spec;

/* Writes the name of a corpus in result tables to `label`: `given` or, if that is NULL, the joined
 * file names, such as "a+b" for a.txt and b.jsonl. */
void kvd_corpus_label(const kvd_corpus_spec *spec, const char *given, char *label, size_t size);

typedef struct kvd_corpus kvd_corpus;

/* Opens a corpus. Exactly one of spec->text, spec->ids and spec->n_random must be set. Empty input
 * is an error. */
kvd_corpus *kvd_corpus_open(const kvd_corpus_spec *spec, const kvd_tokenizer *tok, kvd_err *err);
void kvd_corpus_close(kvd_corpus *c);

size_t kvd_corpus_n_tokens(const kvd_corpus *c);
size_t kvd_corpus_n_sequences(const kvd_corpus *c);
size_t kvd_corpus_n_documents(const kvd_corpus *c);
size_t kvd_corpus_n_texts(const kvd_corpus *c);
/* Returns an array [n_texts + 1], owned by the corpus: number of sequences before each text. The
 * last element is the number of all sequences. */
const size_t *kvd_corpus_text_first(const kvd_corpus *c);
/* Returns true if max_tokens was reached before the last text, and writes to `note` which texts are
 * not read. */
bool kvd_corpus_is_partial(const kvd_corpus *c, const char *const *text, size_t n_text,
                           kvd_err *note);
/* Returns how many tokens were left out of the corpus, because each would have been a sequence of 1
 * token. */
size_t kvd_corpus_n_dropped(const kvd_corpus *c);
/* Return how many tokens sequence s has, and how many are before it. */
size_t kvd_corpus_length(const kvd_corpus *c, size_t s);
size_t kvd_corpus_offset(const kvd_corpus *c, size_t s);
/* Fills offset [n + 1] for a batch, the n sequences from `first` on: index of each sequence's first
 * token in the batch. The last element is the batch's number of tokens. */
void kvd_corpus_offsets(const kvd_corpus *c, size_t first, size_t n, size_t *offset);
/* Returns a hash of all token ids, all sequence lengths, and the first 256 bytes of the corpus
 * text. */
const char *kvd_corpus_hash(const kvd_corpus *c);
int kvd_corpus_hash_first(kvd_corpus *c, size_t n_sequences, char hash[KVD_CORPUS_HASH_TEXT],
                          kvd_err *err);

/* Writes the ids of n sequences to `id`. */
int kvd_corpus_read(kvd_corpus *c, size_t first, size_t n, uint32_t *id, kvd_err *err);

/* Returns how many sequences, beginning with `first`, fit into a batch of max_tokens tokens.
 * Returns at least 1, unless `first` is after the last sequence. */
size_t kvd_corpus_batch(const kvd_corpus *c, size_t first, size_t max_tokens);

#endif
