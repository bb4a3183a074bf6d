/*
 * Sequences of token ids from texts, id lists or a random generator.
 *
 * A document is a text file, a row of a JSONL, JSON or CSV file, or a line of an id list. It is
 * cut into windows of seq_len tokens; a window never crosses documents; the shorter window at
 * the end of a document is kept when it has at least 2 tokens (nothing can be predicted in
 * one). Ids are spooled to a file without a name in $TMPDIR (or /var/tmp, or /tmp), so memory does
 * not grow with their number.
 *
 * With max_tokens the last window is shortened to make the sum exact; where that would leave one
 * token for a window of its own, the window before gives up one.
 */
#ifndef KVD_MODEL_CORPUS_H
#define KVD_MODEL_CORPUS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"
#include "model/tokenizer.h"

typedef struct {
    const char *const *text; /* paths; .jsonl, .json (list), .csv (header row), else plain text     */
    size_t n_text;
    const char *field;         /* JSON key or CSV column; "a,b" joins two by a line feed; NULL: "text", or
                          the value itself in a JSON list of strings                           */
    const char *const *fields; /* [n_text] one for each text instead; NULL: `field` for all */
    bool no_special;           /* leave out the special tokens that the tokenizer puts around a document */
    const char *ids;           /* a CSV of ids, one sequence per line, or NULL                         */
    size_t n_random;           /* random ids; 0: none                                                  */
    uint64_t seed;             /* of the random ids                                                    */
    size_t max_tokens;         /* stop after so many; 0: all. Fewer than asked for is an error         */
    bool by_text;              /* max_tokens is of each text                                           */
    size_t seq_len;            /* 2 .. the model's max_positions                                       */
    size_t vocab_size;         /* ids must be below it                                                 */
} kvd_corpus_spec;

/* What tables call these data when nobody names them: "a.txt" and "b.jsonl" give "a+b", what does not fit
 * becomes "a+2 more"; random ids are "random". */
void kvd_corpus_label(const kvd_corpus_spec *spec, char *label, size_t size);

typedef struct kvd_corpus kvd_corpus;

/* Exactly one of text, ids, n_random is given. tok may be NULL for the last two. Fails on empty
 * input, naming the file; prints nothing. */
kvd_corpus *kvd_corpus_open(const kvd_corpus_spec *spec, const kvd_tokenizer *tok, kvd_err *err);
void kvd_corpus_close(kvd_corpus *c);

size_t kvd_corpus_n_tokens(const kvd_corpus *c);
size_t kvd_corpus_n_sequences(const kvd_corpus *c);
size_t kvd_corpus_n_documents(const kvd_corpus *c);
/* Texts that sequences came from (1 for ids), and [n_texts + 1] the sequences before each and in all. */
size_t kvd_corpus_n_texts(const kvd_corpus *c);
const size_t *kvd_corpus_text_first(const kvd_corpus *c);
/* Tokens left out because they stood alone: at the end of a document, or in one of one token. */
size_t kvd_corpus_n_dropped(const kvd_corpus *c);
/* Length of sequence s, and how many tokens come before it. */
size_t kvd_corpus_length(const kvd_corpus *c, size_t s);
size_t kvd_corpus_offset(const kvd_corpus *c, size_t s);
/* XXH3-128 of all ids and window lengths, "xxh3:...": the identity of the data. */
const char *kvd_corpus_hash(const kvd_corpus *c);
/* The same of the first n_sequences alone, as a corpus that ends there would have it. Reads the ids. */
int kvd_corpus_hash_first(kvd_corpus *c, size_t n_sequences, char hash[40], kvd_err *err);

/* The ids of sequences first .. first+n-1, one after another, into id (room for their lengths). */
int kvd_corpus_read(kvd_corpus *c, size_t first, size_t n, uint32_t *id, kvd_err *err);

/* How many sequences from `first` on fit into max_tokens rows; at least 1 while any is left.
 * Depends only on the corpus, so runs that resume cut the same batches. */
size_t kvd_corpus_batch(const kvd_corpus *c, size_t first, size_t max_tokens);

#endif
