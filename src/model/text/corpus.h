/*
 * Sequences of token ids from texts, id lists or a random generator.
 *
 * A document is a text file, a row of a JSONL, JSON or CSV file, or a line of an id list. It is cut
 * into windows of seq_len tokens; a window never crosses documents. The shorter window at the end
 * of a document is kept if it has at least 2 tokens; a single token has no next token to predict.
 * Ids are written to a temporary file without a name in $TMPDIR (or /var/tmp, or /tmp), so memory
 * does not grow with their number.
 *
 * With max_tokens, only the first part of a document is tokenized if that gives enough tokens, and
 * of a plain text file only this part is read and checked. The ids are the same as if the whole
 * document were tokenized. The last window is shortened so that the number of tokens is exactly
 * max_tokens. If that would leave a last window of one token, the window before it is shortened by
 * one token too.
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
     * Paths of n_text text files: .jsonl, .json (list), .csv (with a header row); any other is
     * plain text.
     */
    const char *const *text;
    size_t n_text;
    /*
     * JSON key or CSV column that holds the text. "a,b" joins the values of two keys by a line
     * feed. NULL means "text", or the value itself in a JSON list of strings.
     */
    const char *field;
    /*
     * JSON key or CSV column of each of the n_text texts; NULL means that `field` applies to all.
     */
    const char *const *fields;
    /* True if the special tokens that the tokenizer adds around a document are left out. */
    bool no_special;
    const char *ids; /* path of a CSV of token ids, one sequence per line, or NULL */
    size_t n_random; /* number of random ids; 0 means none */
    uint64_t seed;   /* seed of the random ids */
    /* Number of tokens to take; 0 means all. If the source has fewer, opening fails. */
    size_t max_tokens;
    bool by_text;      /* max_tokens applies to each text, not to their sum */
    size_t seq_len;    /* tokens per window, 2 .. the model's max_positions */
    size_t vocab_size; /* size of the vocabulary; ids must be below it */
} kvd_corpus_spec;

/*
 * Writes to `label` the name that tables of results show for the corpus. This is `given` (value of
 * the option --label) unless that is NULL. Else it is made from the names of the text files, such
 * as "a+b" for "a.txt" and "b.jsonl", or "a+2 more" if the names do not fit. Random ids have the
 * name "random".
 */
void kvd_corpus_label(const kvd_corpus_spec *spec, const char *given, char *label, size_t size);

typedef struct kvd_corpus kvd_corpus;

/*
 * Opens the corpus that `spec` describes. Exactly one of spec->text, spec->ids and spec->n_random
 * must be set. The tokenizer tok is used only for texts and may be NULL for ids and random ids. On
 * failure returns NULL and fills *err. Empty input is an error that names the file.
 */
kvd_corpus *kvd_corpus_open(const kvd_corpus_spec *spec, const kvd_tokenizer *tok, kvd_err *err);
void kvd_corpus_close(kvd_corpus *c);

size_t kvd_corpus_n_tokens(const kvd_corpus *c);
size_t kvd_corpus_n_sequences(const kvd_corpus *c);
size_t kvd_corpus_n_documents(const kvd_corpus *c);
/*
 * kvd_corpus_n_texts returns the number of texts (1 for ids). kvd_corpus_text_first returns an
 * array with the number of sequences before each text, followed by the number of all sequences.
 */
size_t kvd_corpus_n_texts(const kvd_corpus *c);
const size_t *kvd_corpus_text_first(const kvd_corpus *c);
/*
 * Returns how many tokens were left out because each would have been a window of one token: the
 * last token of a document, or its only one.
 */
size_t kvd_corpus_n_dropped(const kvd_corpus *c);
/*
 * kvd_corpus_length returns the length of sequence s in tokens, kvd_corpus_offset the number of
 * tokens in all earlier sequences.
 */
size_t kvd_corpus_length(const kvd_corpus *c, size_t s);
size_t kvd_corpus_offset(const kvd_corpus *c, size_t s);
/*
 * Fills offset [n + 1] for a batch of the sequences first .. first + n - 1: the number of the
 * batch's tokens before each sequence, and at the end the number of all tokens of the batch.
 */
void kvd_corpus_offsets(const kvd_corpus *c, size_t first, size_t n, size_t *offset);
/*
 * Returns the XXH3-128 hash of all ids and window lengths, "xxh3:...", which identifies the data in
 * result files.
 */
const char *kvd_corpus_hash(const kvd_corpus *c);
/*
 * Computes the hash that kvd_corpus_hash would return for a corpus of only the first n_sequences
 * sequences. Reads the ids. Returns 0, or -1 with *err.
 */
int kvd_corpus_hash_first(kvd_corpus *c, size_t n_sequences, char hash[40], kvd_err *err);

/*
 * Reads the token ids of sequences first .. first+n-1, one after another, into id, which must have
 * room for all of them. Returns 0, or -1 with *err.
 */
int kvd_corpus_read(kvd_corpus *c, size_t first, size_t n, uint32_t *id, kvd_err *err);

/*
 * Returns how many sequences from `first` on form a batch: as many as have at most max_tokens
 * tokens together, but at least 1 if any is left. It depends only on the corpus, so a resumed run
 * makes the same batches.
 */
size_t kvd_corpus_batch(const kvd_corpus *c, size_t first, size_t max_tokens);

#endif
