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
    /* Paths of the texts: .jsonl, .json (a list), .csv (with a header row), else plain text. */
    const char *const *text;
    size_t n_text;
    /*
     * JSON key or CSV column of the text; "a,b" joins two by a line feed. NULL means "text", or the
     * value itself in a JSON list of strings.
     */
    const char *field;
    /*
     * If not NULL, fields[i] is the value of `field` for text i of the n_text texts. NULL: `field`
     * applies to all texts.
     */
    const char *const *fields;
    /* True: the special tokens that the tokenizer adds to a document, such as BOS, are left out. */
    bool no_special;
    const char *ids; /* CSV file of token ids, one sequence per line, or NULL */
    size_t n_random;
    uint64_t seed;
    /* Number of tokens to take; 0 means all. If the source has fewer, opening fails. */
    size_t max_tokens;
    bool by_text;   /* max_tokens is a limit for each text, not for their sum */
    size_t seq_len; /* tokens per window, 2 to max_positions */
    size_t vocab_size;
} kvd_corpus_spec;

/*
 * Writes the name of the corpus in tables: `given` (option --label), if it is not NULL. Otherwise
 * the name is "a+b" for the files "a.txt" and "b.jsonl", "a+2 more" for "a.txt" and two other
 * files, or "random".
 */
void kvd_corpus_label(const kvd_corpus_spec *spec, const char *given, char *label, size_t size);

typedef struct kvd_corpus kvd_corpus;

/*
 * Returns the opened corpus. Exactly one of spec->text, spec->ids and spec->n_random must be set.
 * The tokenizer may be NULL if there are no texts. On failure returns NULL and fills *err. Empty
 * input is an error.
 */
kvd_corpus *kvd_corpus_open(const kvd_corpus_spec *spec, const kvd_tokenizer *tok, kvd_err *err);
void kvd_corpus_close(kvd_corpus *c);

size_t kvd_corpus_n_tokens(const kvd_corpus *c);
size_t kvd_corpus_n_sequences(const kvd_corpus *c);
size_t kvd_corpus_n_documents(const kvd_corpus *c);
/*
 * kvd_corpus_n_texts returns the number of texts. The sequences of a text follow one another.
 * kvd_corpus_text_first returns, for each text, the number of sequences of earlier texts, then the
 * number of all sequences. A corpus without texts counts as one text.
 */
size_t kvd_corpus_n_texts(const kvd_corpus *c);
const size_t *kvd_corpus_text_first(const kvd_corpus *c);
/* Returns the number of tokens that were left out because a window needs at least 2 tokens. */
size_t kvd_corpus_n_dropped(const kvd_corpus *c);
/*
 * kvd_corpus_length returns the number of tokens in sequence s. kvd_corpus_offset returns the
 * number of tokens in all sequences before sequence s.
 */
size_t kvd_corpus_length(const kvd_corpus *c, size_t s);
size_t kvd_corpus_offset(const kvd_corpus *c, size_t s);
/*
 * Fills offset [n + 1] for a batch of the sequences first .. first + n - 1: for each sequence the
 * number of tokens before it in the batch, then the number of all tokens of the batch.
 */
void kvd_corpus_offsets(const kvd_corpus *c, size_t first, size_t n, size_t *offset);
/* Returns the XXH3-128 hash of all ids and window lengths, "xxh3:...". */
const char *kvd_corpus_hash(const kvd_corpus *c);
/*
 * Computes the hash that a corpus of only the first n_sequences sequences has. Reads their ids from
 * the temporary file. Returns 0, or -1 with *err.
 */
int kvd_corpus_hash_first(kvd_corpus *c, size_t n_sequences, char hash[40], kvd_err *err);

/*
 * Writes the ids of sequences first .. first+n-1, one after another, to `id`. Returns 0, or -1 with
 * *err.
 */
int kvd_corpus_read(kvd_corpus *c, size_t first, size_t n, uint32_t *id, kvd_err *err);

/*
 * Returns how many sequences, beginning with sequence `first`, have at most max_tokens tokens
 * together. The result is at least 1 if a sequence is left.
 */
size_t kvd_corpus_batch(const kvd_corpus *c, size_t first, size_t max_tokens);

#endif
