/* Steps of tokenization, such as splitting and merging, and tokenizers from llama2.c and GGUF
 * files.
 *
 * If the parameter `open` is true, more text may follow. Functions then leave out the end of their
 * output, which the further text could change. */
#ifndef KVD_MODEL_TEXT_TOKENIZER_STEPS_H
#define KVD_MODEL_TEXT_TOKENIZER_STEPS_H

#include <jansson.h>

#include "model/checkpoint/gguf.h"
#include "model/text/tokenizer.h"
#include "model/text/tokenizer/pieces.h"

/* vocabulary of a tokenizer: text and id of each token; some ids may be unused */

typedef struct {
    size_t begin;
    uint32_t len, id;
} kvd_vocab_entry;

typedef struct {
    kvd_buffer text;
    kvd_vocab_entry *entry; /* sorted by id after kvd_vocab_build */
    size_t n, capacity;
    /* hash table of texts: 1 + index of an entry, or 0 for an empty slot */
    uint32_t *slot;
    size_t n_slots;
    size_t longest;
} kvd_vocab;

/* Adds a token to the vocabulary. After the last token, the caller must call kvd_vocab_build, which
 * fails if two tokens have equal texts or ids. */
int kvd_vocab_add(kvd_vocab *v, const char *piece, size_t len, uint32_t id, kvd_err *err);
int kvd_vocab_build(kvd_vocab *v, kvd_err *err);
void kvd_vocab_release(kvd_vocab *v);

bool kvd_vocab_find(const kvd_vocab *v, const char *piece, size_t len, uint32_t *id);
/* Returns the text of a token, without a zero byte at its end, or NULL if no token has this id. */
const char *kvd_vocab_piece(const kvd_vocab *v, uint32_t id, size_t *len);
/* Returns the largest token id + 1, or 0 if there are no tokens. */
size_t kvd_vocab_end(const kvd_vocab *v);

/* The "normalizer" of tokenizer.json, applied to text between added tokens. */

typedef struct kvd_normalizer kvd_normalizer;

/* Reads a normalizer. If `spec` is JSON's null, there is none. */
kvd_normalizer *kvd_normalizer_parse(const json_t *spec, kvd_err *err);
void kvd_normalizer_free(kvd_normalizer *n);

/* Normalizes *text in place. Updates *first, the number of leading bytes of *text that come from
 * the document's first character. */
int kvd_normalizer_apply(const kvd_normalizer *n, kvd_buffer *text, kvd_buffer *scratch,
                         size_t *first, bool open, kvd_err *err);

int kvd_normalizer_apply_pieces(const kvd_normalizer *n, kvd_pieces *p, kvd_err *err);

/* The "added_tokens" of tokenizer.json: the longest match becomes one id before BPE. */

typedef struct kvd_added_tokens kvd_added_tokens;

/* Reads the added tokens. If `spec` is NULL, there are none. */
kvd_added_tokens *kvd_added_tokens_parse(const json_t *spec, const kvd_vocab *vocab,
                                         const kvd_normalizer *n, kvd_err *err);
void kvd_added_tokens_free(kvd_added_tokens *a);

/* Cuts a text at added tokens. Call it with `normalized` false before the normalizer runs, and with
 * `normalized` true afterwards. */
int kvd_added_tokens_split(const kvd_added_tokens *a, bool normalized, kvd_pieces *p, kvd_err *err);

/* Returns the text of an added token, or NULL if no added token has this id. */
const char *kvd_added_tokens_text(const kvd_added_tokens *a, uint32_t id, size_t *len,
                                  bool *special);

/* Returns the largest id of an added token + 1, or 0 if there are none. */
size_t kvd_added_tokens_end(const kvd_added_tokens *a);

/* The "pre_tokenizer" of tokenizer.json, which cuts text into words for BPE. */

typedef struct kvd_pretokenizer kvd_pretokenizer;

/* Reads the steps of a pre-tokenizer. If `spec` is JSON's null, a whole document is one word. */
kvd_pretokenizer *kvd_pretokenizer_parse(const json_t *spec, kvd_err *err);
void kvd_pretokenizer_free(kvd_pretokenizer *p);

/* Returns true if the pre-tokenizer of tokenizer.json has a ByteLevel step. BPE then merges bytes
 * instead of characters. */
bool kvd_pretokenizer_byte_level(const kvd_pretokenizer *p);

int kvd_pretokenizer_apply(const kvd_pretokenizer *p, kvd_pieces *pieces, kvd_err *err);

/* The "model" of tokenizer.json: byte-pair encoding. */

typedef struct kvd_bpe kvd_bpe;
typedef struct kvd_bpe_work kvd_bpe_work; /* buffers and word cache of one thread */

/* Reads the BPE model of tokenizer.json. If `byte_level`, the model merges bytes, otherwise
 * characters. */
kvd_bpe *kvd_bpe_parse(const json_t *model, bool byte_level, kvd_err *err);
void kvd_bpe_free(kvd_bpe *m);

/* Returns the vocabulary, which the model owns. */
const kvd_vocab *kvd_bpe_vocab(const kvd_bpe *m);

kvd_bpe_work *kvd_bpe_work_new(const kvd_bpe *m, kvd_err *err);
void kvd_bpe_work_free(kvd_bpe_work *w);

/* Appends the ids of a word. Unknown characters become unk_token or are left out. */
int kvd_bpe_encode(const kvd_bpe *m, kvd_bpe_work *w, const char *word, size_t len, bool open,
                   kvd_ids *ids, kvd_err *err);

/* The "post_processor" of tokenizer.json, which adds special tokens. */

typedef struct {
    /* true: this part is the ids of the tokenized text; false: it is the special token `id` */
    bool is_text;
    uint32_t id;
} kvd_template_part;

typedef struct {
    kvd_template_part *part;
    size_t n, capacity;
} kvd_template;

/* Parses the "post_processor" of tokenizer.json, which puts special tokens around a text; JSON
 * null: none. The caller releases *t, also after a failure. */
int kvd_template_parse(const json_t *spec, kvd_template *t, kvd_err *err);
void kvd_template_release(kvd_template *t);

/* Appends the ids of a text. If add_special, also appends the special tokens before the text and,
 * unless `open`, after it. `open`: more text may follow. */
int kvd_template_apply(const kvd_template *t, const kvd_ids *text, bool open, bool add_special,
                       kvd_ids *ids, kvd_err *err);

/* The "decoder" of tokenizer.json, which joins tokens into text. */

typedef struct kvd_token_decoder kvd_token_decoder;

/* list of texts; text i is bytes end[i - 1] .. end[i] - 1 of text.s */
typedef struct {
    kvd_buffer text;
    size_t *end;
    size_t n, capacity;
} kvd_strings;

int kvd_strings_add(kvd_strings *l, const char *s, size_t len, kvd_err *err);
void kvd_strings_release(kvd_strings *l);

/* Reads a tokenizer's decoder, which turns tokens into text. If `spec` is JSON's null, tokens are
 * joined with spaces. */
kvd_token_decoder *kvd_token_decoder_parse(const json_t *spec, kvd_err *err);
void kvd_token_decoder_free(kvd_token_decoder *d);

/* Decodes the tokens' texts *strings and appends the result to *out. Overwrites *strings. */
int kvd_token_decoder_apply(const kvd_token_decoder *d, kvd_strings *strings, kvd_buffer *out,
                            kvd_err *err);

/* tokenizer.bin of llama2.c: uint32 length of the longest token; then for each token float32 score,
 * int32 length, bytes.
 *
 * Neighbouring tokens are joined, highest score first. A byte b of an unknown character becomes id
 * 3 + b. */

typedef struct kvd_llama2c kvd_llama2c;

kvd_llama2c *kvd_llama2c_tok_parse(const void *bytes, size_t len, size_t vocab_size, kvd_err *err);
void kvd_llama2c_tok_free(kvd_llama2c *t);

/* Appends the ids of a space and of the text. If `bos`, id 1 (begin of text) comes first. */
int kvd_llama2c_tok_encode(const kvd_llama2c *t, const char *text, size_t len, bool open, bool bos,
                           kvd_ids *ids, kvd_err *err);

/* Appends the text of n ids. A token "<0xNN>" becomes one byte. */
int kvd_llama2c_tok_decode(const kvd_llama2c *t, const uint32_t *id, size_t n, kvd_buffer *out,
                           kvd_err *err);

struct json_t;

/* Makes a tokenizer.json, owned by the caller, from a GGUF file of SentencePiece or byte-level BPE.
 *
 * SentencePiece files have no list of merges. Two tokens may merge if their joined text is a
 * token. */
struct json_t *kvd_gguf_tokenizer(const kvd_gguf *g, kvd_err *err);

/* Byte-pair encoding of a word of n symbols in O(n log n) steps.
 *
 * Characters that are adjacent in no token have a boundary between them, which no merge crosses. */

typedef struct {
    uint32_t id;
    uint32_t before, after; /* indices of the neighbouring symbols; UINT32_MAX: none */
    bool gone;
} kvd_symbol;

/* two neighbouring symbols that may be joined */
typedef struct {
    uint64_t order; /* merge priority in the high bits, position in the low bits */
    uint32_t id;
} kvd_merge_candidate;

/* Callback: returns true if two symbols may be joined, and sets *id to the joined symbol. *priority
 * receives the priority of this merge; the smallest number is merged first. */
typedef bool (*kvd_merge_rule)(const void *context, uint32_t left, uint32_t right,
                               uint32_t *priority, uint32_t *id);

/* set of character pairs that are adjacent in some token; hash collisions may add other pairs */
typedef struct kvd_pair_set kvd_pair_set;

kvd_pair_set *kvd_pair_set_new(kvd_err *err);
void kvd_pair_set_free(kvd_pair_set *set);
void kvd_pair_set_add(kvd_pair_set *set, const char *product, size_t len);

typedef struct {
    kvd_merge_rule rule;
    const void *context;
    /* vocabulary: texts of single characters and of symbols that result from merges */
    const kvd_vocab *vocab;
    /* pairs of characters that are adjacent in some token */
    const kvd_pair_set *pairs;
} kvd_merge_model;

typedef struct {
    const kvd_merge_model *model;
    kvd_ids *ids;
    kvd_symbol *symbol;
    size_t n, capacity;
    /* number of symbols after which merging of a word begins, even if the word is not complete */
    size_t full;
    kvd_merge_candidate *heap;
    size_t n_heap, heap_capacity;
} kvd_merge_work;

/* Prepares *w for the symbols of a new word. kvd_merge_end will append the word's token ids to
 * *ids. */
void kvd_merge_start(kvd_merge_work *w, const kvd_merge_model *model, kvd_ids *ids);

/* Appends a symbol to the current word. May already merge earlier symbols that no later symbol can
 * affect. */
int kvd_merge_add(kvd_merge_work *w, uint32_t id, kvd_err *err);

/* Joins the symbols, smallest priority first, leftmost on ties, and appends their ids. If `open`,
 * leaves out symbols that later text may still join. */
int kvd_merge_end(kvd_merge_work *w, bool open, kvd_err *err);

void kvd_merge_release(kvd_merge_work *w);

#endif
