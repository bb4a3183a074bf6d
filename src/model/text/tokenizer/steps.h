/*
 * The steps of a tokenizer (tokenizer.json), in the order in which they process a text, and the
 * tokenizers of llama2.c and GGUF files.
 */
#ifndef KVD_MODEL_TEXT_TOKENIZER_STEPS_H
#define KVD_MODEL_TEXT_TOKENIZER_STEPS_H

#include <jansson.h>

#include "model/checkpoint/gguf.h"
#include "model/text/tokenizer.h"
#include "model/text/tokenizer/pieces.h"

/*
 * Vocabulary: pieces (the strings of tokens) and their ids. Ids may have gaps; memory is
 * proportional to the number of pieces.
 */

typedef struct {
    size_t begin;
    uint32_t len, id;
} kvd_vocab_entry;

typedef struct {
    kvd_buffer text;
    kvd_vocab_entry *entry; /* sorted by id after kvd_vocab_build */
    size_t n, capacity;
    /* Hash table of pieces: index + 1 of an element of `entry`, or 0 if unused. */
    uint32_t *slot;
    size_t n_slots;
    size_t longest;
} kvd_vocab;

/*
 * kvd_vocab_add adds a piece. kvd_vocab_build must be called after all calls of kvd_vocab_add; it
 * fails if a piece or an id occurs twice.
 */
int kvd_vocab_add(kvd_vocab *v, const char *piece, size_t len, uint32_t id, kvd_err *err);
int kvd_vocab_build(kvd_vocab *v, kvd_err *err);
void kvd_vocab_release(kvd_vocab *v);

bool kvd_vocab_find(const kvd_vocab *v, const char *piece, size_t len, uint32_t *id);
/*
 * Returns the piece of *len bytes, not zero-terminated, or NULL if the id is not in the vocabulary.
 */
const char *kvd_vocab_piece(const kvd_vocab *v, uint32_t id, size_t *len);
/* Returns the largest id of the vocabulary + 1, or 0 if the vocabulary is empty. */
size_t kvd_vocab_end(const kvd_vocab *v);

/*
 * The "normalizer" of tokenizer.json, applied to the text between added tokens. Normal forms are
 * those of Unicode 9.0, as in Hugging Face tokenizers. Lowercase fails on characters that the
 * Unicode version of utf8proc lacks.
 */

typedef struct kvd_normalizer kvd_normalizer;

/* Reads a normalizer; JSON null means no normalizer. On failure returns NULL and fills *err. */
kvd_normalizer *kvd_normalizer_parse(const json_t *spec, kvd_err *err);
void kvd_normalizer_free(kvd_normalizer *n);

/*
 * Normalizes *text in place; *scratch is overwritten. If `first` is not NULL, *first leading bytes
 * of *text come from the first character of the document, and *first is updated. If `open`, the
 * document continues after *text, and the result is the part that does not depend on the
 * continuation. Fails if the text grows to more than 64 times its size plus 64 KiB.
 */
int kvd_normalizer_apply(const kvd_normalizer *n, kvd_buffer *text, kvd_buffer *scratch,
                         size_t *first, bool open, kvd_err *err);

int kvd_normalizer_apply_pieces(const kvd_normalizer *n, kvd_pieces *p, kvd_err *err);

/*
 * The "added_tokens" of tokenizer.json: strings that become one id before the BPE model sees the
 * text. The leftmost match is used; of several matches at one position, the longest.
 */

typedef struct kvd_added_tokens kvd_added_tokens;

/*
 * Reads the added tokens; `spec` may be NULL. The id of a token in the file must be the one that
 * Hugging Face tokenizers would assign: the token's id in `vocab` or, if it is not there, the next
 * free id. On failure returns NULL and fills *err.
 */
kvd_added_tokens *kvd_added_tokens_parse(const json_t *spec, const kvd_vocab *vocab,
                                         const kvd_normalizer *n, kvd_err *err);
void kvd_added_tokens_free(kvd_added_tokens *a);

/*
 * Finds added tokens in the pieces of text and makes each a piece of its own. If `normalized` is
 * true, finds the tokens that are matched after the normalizer, else those matched before it.
 */
int kvd_added_tokens_split(const kvd_added_tokens *a, bool normalized, kvd_pieces *p, kvd_err *err);

/* Returns the text of *len bytes, or NULL if the id is not an added token. */
const char *kvd_added_tokens_text(const kvd_added_tokens *a, uint32_t id, size_t *len);

/* Returns the largest id of an added token + 1, or 0 if there are no added tokens. */
size_t kvd_added_tokens_end(const kvd_added_tokens *a);

/*
 * The "pre_tokenizer" of tokenizer.json, which cuts text into the words that the BPE model encodes.
 * The steps Split and Digits after ByteLevel read ByteLevel's alphabet, and may cut inside a
 * character.
 */

typedef struct kvd_pretokenizer kvd_pretokenizer;

/*
 * Reads a pre-tokenizer; with JSON null, a whole document is one word. On failure returns NULL and
 * fills *err.
 */
kvd_pretokenizer *kvd_pretokenizer_parse(const json_t *spec, kvd_err *err);
void kvd_pretokenizer_free(kvd_pretokenizer *p);

/*
 * Returns true if ByteLevel is one of the steps, so that the BPE model works on bytes. Pieces of
 * text keep their bytes; only the vocabulary and merges of the model are in ByteLevel's alphabet.
 */
bool kvd_pretokenizer_byte_level(const kvd_pretokenizer *p);

int kvd_pretokenizer_apply(const kvd_pretokenizer *p, kvd_pieces *pieces, kvd_err *err);

/*
 * The "model" of tokenizer.json: byte-pair encoding (BPE) joins neighbouring symbols of a word in
 * the order of the list of merges.
 */

typedef struct kvd_bpe kvd_bpe;
typedef struct kvd_bpe_work kvd_bpe_work; /* buffers and a cache of words, for one thread */

/*
 * Reads a BPE model. If `byte_level`, words are given as bytes, which the vocabulary writes in the
 * alphabet of kvd_byte_to_char. On failure returns NULL and fills *err.
 */
kvd_bpe *kvd_bpe_parse(const json_t *model, bool byte_level, kvd_err *err);
void kvd_bpe_free(kvd_bpe *m);

/* Returns the vocabulary, which the model owns. */
const kvd_vocab *kvd_bpe_vocab(const kvd_bpe *m);

kvd_bpe_work *kvd_bpe_work_new(const kvd_bpe *m, kvd_err *err);
void kvd_bpe_work_free(kvd_bpe_work *w);

/*
 * Appends the ids of one word, which is valid UTF-8 unless the model is byte-level. A character
 * that is neither in the vocabulary nor covered by byte fallback becomes unk_token; without an
 * unk_token it is left out, as in Hugging Face tokenizers. If `open`, `word` is the beginning of a
 * longer word, and only ids that do not depend on its continuation are appended.
 */
int kvd_bpe_encode(const kvd_bpe *m, kvd_bpe_work *w, const char *word, size_t len, bool open,
                   kvd_ids *ids, kvd_err *err);

/* The "post_processor" of tokenizer.json, which adds special tokens to the ids of a text. */

typedef struct {
    /*
     * If true, this element of the template is the ids of the text. If false, it is the special
     * token `id`.
     */
    bool is_text;
    uint32_t id;
} kvd_template_part;

typedef struct {
    kvd_template_part *part;
    size_t n, capacity;
} kvd_template;

/*
 * Reads a post-processor; JSON null means the ids of the text alone. The caller must release t on
 * failure too.
 */
int kvd_template_parse(const json_t *spec, kvd_template *t, kvd_err *err);
void kvd_template_release(kvd_template *t);

/*
 * Appends the ids of a text to *ids, with special tokens around them if `add_special`. If `open`,
 * `text` holds only the first ids of a longer text, and the special tokens after the text are left
 * out.
 */
int kvd_template_apply(const kvd_template *t, const kvd_ids *text, bool open, bool add_special,
                       kvd_ids *ids, kvd_err *err);

/* The "decoder" of tokenizer.json, which joins the strings of tokens into text. */

typedef struct kvd_token_decoder kvd_token_decoder;

/*
 * A list of strings. String i is bytes end[i - 1] .. end[i] - 1 of text.s, where end[-1] counts as
 * 0.
 */
typedef struct {
    kvd_buffer text;
    size_t *end;
    size_t n, capacity;
} kvd_strings;

int kvd_strings_add(kvd_strings *l, const char *s, size_t len, kvd_err *err);
void kvd_strings_release(kvd_strings *l);

/*
 * Reads a decoder; with JSON null, strings are joined with spaces. On failure returns NULL and
 * fills *err.
 */
kvd_token_decoder *kvd_token_decoder_parse(const json_t *spec, kvd_err *err);
void kvd_token_decoder_free(kvd_token_decoder *d);

/* Appends the decoded text to *out. The contents of *strings are overwritten. */
int kvd_token_decoder_apply(const kvd_token_decoder *d, kvd_strings *strings, kvd_buffer *out,
                            kvd_err *err);

/*
 * The file tokenizer.bin of llama2.c: uint32 length of the longest piece (string of a token), then
 * for each piece float32 score, int32 length and bytes (little-endian).
 *
 * Neighbouring pieces whose concatenation is a piece are joined, highest score first, leftmost on
 * ties. Each byte of a character that is not a piece becomes the id 3 + byte, even if the
 * vocabulary has a piece other than this byte at that id.
 */

typedef struct kvd_llama2c kvd_llama2c;

kvd_llama2c *kvd_llama2c_tok_parse(const void *bytes, size_t len, size_t vocab_size, kvd_err *err);
void kvd_llama2c_tok_free(kvd_llama2c *t);

/*
 * Appends the ids of a text. A text that is not empty gets a leading space. If `bos`, id 1
 * (beginning of text) comes first; as in llama2.c, it may be joined with the next piece. If `open`,
 * `text` is the beginning of a longer text, and only ids that do not depend on its continuation are
 * appended.
 */
int kvd_llama2c_tok_encode(const kvd_llama2c *t, const char *text, size_t len, bool open, bool bos,
                           kvd_ids *ids, kvd_err *err);

/*
 * Appends the text of n ids to *out. A space directly after id 1 (BOS) is dropped; a piece "<0xNN>"
 * becomes one byte.
 */
int kvd_llama2c_tok_decode(const kvd_llama2c *t, const uint32_t *id, size_t n, kvd_buffer *out,
                           kvd_err *err);

struct json_t;

/*
 * Returns a tokenizer.json built from the values of a GGUF file; the caller owns it. Supports
 * tokenizer.ggml.model `llama` (SentencePiece BPE with byte fallback) and `gpt2` (byte-level BPE).
 * On failure returns NULL and fills *err.
 *
 * A SentencePiece vocabulary has scores instead of merges. As in Transformers, the merges are then
 * all pairs of tokens whose concatenation is a token, ordered by its score. If the GGUF file does
 * not tell whether BOS and EOS are added, the defaults of llama.cpp apply.
 */
struct json_t *kvd_gguf_tokenizer(const kvd_gguf *g, kvd_err *err);

/*
 * Description of a byte-pair encoding for the merge loop, for tokenizer.json and for llama2.c. With
 * a heap of candidates, a word of n symbols takes O(n log n) steps.
 *
 * A word may be a whole document. Between two characters that are not neighbours in any merged
 * token there is a boundary: merges before and after it do not depend on each other. The memory is
 * proportional to the distance between boundaries.
 */

typedef struct {
    uint32_t id;
    uint32_t before, after; /* indices of the neighbouring symbols; UINT32_MAX: none */
    bool gone;
} kvd_symbol;

/* Candidate in the heap of merges: two neighbouring symbols that may be joined. */
typedef struct {
    uint64_t order; /* merge priority in the high bits, position in the word in the low bits */
    uint32_t id;
} kvd_merge_candidate;

/*
 * Returns true if two symbols may be joined, and fills *id with the joined symbol and *priority
 * (the smallest is joined first).
 */
typedef bool (*kvd_merge_rule)(const void *context, uint32_t left, uint32_t right,
                               uint32_t *priority, uint32_t *id);

/*
 * Set of pairs of neighbouring characters that occur in merged tokens. Only hash values are stored,
 * so the set may report a pair as a member that is not one.
 */
typedef struct kvd_pair_set kvd_pair_set;

kvd_pair_set *kvd_pair_set_new(kvd_err *err);
void kvd_pair_set_free(kvd_pair_set *set);
/* Adds all pairs of neighbouring characters of the merged token `product`. */
void kvd_pair_set_add(kvd_pair_set *set, const char *product, size_t len);

typedef struct {
    kvd_merge_rule rule;
    const void *context;
    /*
     * Strings of the symbols. The string of a joined symbol is the concatenation of the strings of
     * its two parts.
     */
    const kvd_vocab *vocab;
    /*
     * Set that contains the pairs of neighbouring characters in all joined symbols; it may contain
     * more.
     */
    const kvd_pair_set *pairs;
} kvd_merge_model;

typedef struct {
    const kvd_merge_model *model;
    kvd_ids *ids;
    kvd_symbol *symbol;
    size_t n, capacity;
    /*
     * Largest number of symbols. When it is reached, kvd_merge_add merges symbols, which shortens
     * the list.
     */
    size_t full;
    kvd_merge_candidate *heap;
    size_t n_heap, heap_capacity;
} kvd_merge_work;

/* Starts a word, whose ids will be appended to *ids. Buffers are kept between words. */
void kvd_merge_start(kvd_merge_work *w, const kvd_merge_model *model, kvd_ids *ids);

/*
 * Appends a symbol to the word. If the word has too many symbols, merges the symbols before the
 * last boundary and appends their ids to w->ids.
 */
int kvd_merge_add(kvd_merge_work *w, uint32_t id, kvd_err *err);

/*
 * Joins neighbouring symbols until no two can be joined, and appends the remaining ids. The
 * smallest priority is joined first, leftmost on ties. If `open`, unknown text follows, and the
 * symbols after the last boundary (a place across which no merge is possible) are dropped.
 */
int kvd_merge_end(kvd_merge_work *w, bool open, kvd_err *err);

void kvd_merge_release(kvd_merge_work *w);

#endif
