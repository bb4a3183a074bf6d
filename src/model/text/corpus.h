/*
 * Sequences of token ids from texts, id lists or a random generator.
 *
 * A document is a text file, a row of a JSONL, JSON or CSV file, or a line of an id list. It is cut
 * into windows of seq_len tokens; a window never crosses documents. The shorter window at the end
 * of a document is kept if it has at least 2 tokens, because one token has no next token to
 * predict. Ids are written to a file without a name in $TMPDIR (or /var/tmp, or /tmp), so memory
 * does not grow with their number.
 *
 * With max_tokens, only as much of a document is tokenized, and of a plain text file read, as the
 * tokens need; the rest is not checked. The ids are the first ones of the whole document. The last
 * window is shortened so that the sum is exact. If that would leave a last window of one token, the
 * window before it gives up one token.
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
     * paths of text files: .jsonl, .json (list), .csv (with a header row); any other is plain text
     */
    const char *const *text;
    size_t n_text;
    const char *field; /* JSON key or CSV column; "a,b" joins two by a line feed; NULL: "text", or
                          the value itself in a JSON list of strings */
    const char *const *fields; /* [n_text] field of each text; NULL means `field` for all */
    /* true to leave out the special tokens that the tokenizer adds around a document */
    bool no_special;
    const char *ids; /* a CSV of ids, one sequence per line, or NULL */
    size_t n_random; /* number of random ids; 0 means none */
    uint64_t seed;   /* seed of the random ids */
    /* number of tokens to take; 0 means all. Too few tokens in the source are an error. */
    size_t max_tokens;
    bool by_text;      /* max_tokens holds for each text, not for their sum */
    size_t seq_len;    /* tokens per window: 2 .. the model's max_positions */
    size_t vocab_size; /* size of the vocabulary; ids must be below it */
} kvd_corpus_spec;

/*
 * Writes the label of the data for tables: `given` (--label), or if that is NULL the names of the
 * texts: "a.txt" and "b.jsonl" give "a+b". If the names do not fit, the label is like "a+2 more".
 * The label of random ids is "random".
 */
void kvd_corpus_label(const kvd_corpus_spec *spec, const char *given, char *label, size_t size);

typedef struct kvd_corpus kvd_corpus;

/*
 * Opens the corpus that `spec` describes. Exactly one of text, ids and n_random must be set; tok
 * may be NULL for the last two. Returns NULL with *err on failure. Empty input is an error that
 * names the file. Prints nothing.
 */
kvd_corpus *kvd_corpus_open(const kvd_corpus_spec *spec, const kvd_tokenizer *tok, kvd_err *err);
void kvd_corpus_close(kvd_corpus *c);

size_t kvd_corpus_n_tokens(const kvd_corpus *c);
size_t kvd_corpus_n_sequences(const kvd_corpus *c);
size_t kvd_corpus_n_documents(const kvd_corpus *c);
/*
 * Return the number of texts (1 for ids), and an array [n_texts + 1] with the number of sequences
 * before each text, whose last entry is the number of all sequences.
 */
size_t kvd_corpus_n_texts(const kvd_corpus *c);
const size_t *kvd_corpus_text_first(const kvd_corpus *c);
/*
 * Returns the number of tokens left out because they would have been a window of one token: the
 * last token of a document, or the only one.
 */
size_t kvd_corpus_n_dropped(const kvd_corpus *c);
/* Return the length of sequence s in tokens, and the number of tokens in all earlier sequences. */
size_t kvd_corpus_length(const kvd_corpus *c, size_t s);
size_t kvd_corpus_offset(const kvd_corpus *c, size_t s);
/*
 * Fills offset [n + 1] for a batch of n sequences from `first` on: the number of tokens before each
 * of them in the batch, and last the number of tokens of the batch.
 */
void kvd_corpus_offsets(const kvd_corpus *c, size_t first, size_t n, size_t *offset);
/*
 * Returns the XXH3-128 hash of all ids and window lengths, "xxh3:...", which identifies the data.
 */
const char *kvd_corpus_hash(const kvd_corpus *c);
/*
 * Computes the content hash that a corpus of only the first n_sequences sequences would have. Reads
 * the ids. Returns 0, or -1 with *err.
 */
int kvd_corpus_hash_first(kvd_corpus *c, size_t n_sequences, char hash[40], kvd_err *err);

/*
 * Reads the ids of sequences first .. first+n-1, one after another, into id, which has room for
 * their lengths. Returns 0, or -1 with *err.
 */
int kvd_corpus_read(kvd_corpus *c, size_t first, size_t n, uint32_t *id, kvd_err *err);

/*
 * Returns the number of sequences from `first` on that fit into max_tokens rows, at least 1 if any
 * is left. It depends only on the corpus, so that a resumed run cuts the same batches.
 */
size_t kvd_corpus_batch(const kvd_corpus *c, size_t first, size_t max_tokens);

#endif
