/*
 * Chat formats: the text that a model's chat template puts around the messages of a conversation
 * between one user and one assistant, without tools and without a system message written by the
 * user. A template is a Jinja program in the files of a model. It is not run here, but recognised
 * by parts of its text. tests/oracle/make_chat.py compares every format with published templates
 * run by jinja2.
 *
 * A conversation consists of `bos` and `start`, then for each turn `user`, the user's message,
 * `header`, and the answer. The text `end` comes between an answer and the next user message.
 */
#ifndef KVD_MODEL_TEXT_CHAT_H
#define KVD_MODEL_TEXT_CHAT_H

#include <stdbool.h>
#include <stddef.h>

#include "common/err.h"

enum { KVD_CHAT_MARKS = 4 };

typedef struct {
    const char *name;
    const char *bos;   /* beginning-of-text token that the template writes, or "" */
    const char *start; /* text before the first turn: a default system message, or "" */
    const char *user;  /* text before a user's message */
    /* Text after a user's message, up to and including the header of the assistant's answer. */
    const char *header;
    /* Text between an answer and the next user message. */
    const char *end;
    /*
     * Token with which the model ends its answer. If the conversation continues, this token is left
     * out of the text of the conversation: the text `end` follows the answer instead.
     */
    const char *stop;
    /* True if white space at both ends of a user's message is removed. */
    bool trim;
    /*
     * True if the template removes reasoning from earlier answers. A KV cache still holds that
     * reasoning, so such a format is only correct for conversations of one turn.
     */
    bool one_turn;
    bool end_eos; /* true if `stop` is the eos_token of tokenizer_config.json */
    /*
     * Strings that identify the format. A template has the format if it contains all strings of
     * `has` and none of `lacks`, after its escapes \n are read as line feeds, its double quotes
     * as single quotes, and its literals 'a' + 'b' as 'ab'. NULL ends a list.
     */
    const char *has[KVD_CHAT_MARKS], *lacks[KVD_CHAT_MARKS];
} kvd_chat;

/*
 * Values of the option --chat: "none", "auto", then the names of the chat formats; NULL ends the
 * list.
 */
extern const char *const kvd_chat_words[];
enum { KVD_CHAT_NONE, KVD_CHAT_AUTO };

/* Returns the chat format named kvd_chat_words[word], or NULL for "none" and "auto". */
const kvd_chat *kvd_chat_form(int word);

/* Returns the chat format of the template with this text, or NULL if no format matches. */
const kvd_chat *kvd_chat_recognise(const char *template_text);

/*
 * Returns the chat format of the template in the folder of a model. The template is the file
 * chat_template.jinja if it exists, else chat_template in tokenizer_config.json: a string, or a
 * list of named templates of which "default" is used. *path receives the allocated path of that
 * file. Returns NULL and fills *err if `folder` is not a folder, has no template or holds broken
 * JSON, if no format matches, or if tokenizer_config.json names another bos_token or eos_token than
 * the format.
 */
const kvd_chat *kvd_chat_read(const char *folder, char **path, kvd_err *err);

/*
 * The text of one turn of a conversation up to the beginning of the assistant's answer, as five
 * strings that are tokenized one after another: before[0], before[1], before[2], the user's message
 * `text`, and `after`.
 */
typedef struct {
    /*
     * Texts before the user's message, each maybe empty: the beginning-of-text token (first turn
     * only), the default system message (first turn) or the text after the previous answer, and the
     * text that begins a user's message.
     */
    const char *before[3];
    const char *text; /* user's message, len bytes inside the caller's text */
    size_t len;
    /* Text after the user's message, up to and including the header of the assistant's answer. */
    const char *after;
} kvd_chat_pieces;

/*
 * Returns the strings of one turn in the chat format c. `first` is true for the first turn of a
 * conversation; a later turn begins with c->end, which ends the previous answer. If the format says
 * so, white space that Python's str.strip removes is stripped from the user's message `text`. If c
 * is NULL, the message alone is returned. `text` must be valid UTF-8.
 */
kvd_chat_pieces kvd_chat_around(const kvd_chat *c, const char *text, bool first);

#endif
