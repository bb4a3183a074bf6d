/* Chat formats: the text around the messages of a user and an assistant. Templates are run on a few
 * conversations, and recognised by what they write. */
#ifndef KVD_MODEL_TEXT_CHAT_H
#define KVD_MODEL_TEXT_CHAT_H

#include <stdbool.h>
#include <stddef.h>

#include "common/err.h"

typedef struct {
    const char *name;
    const char *bos;   /* beginning-of-text token, or "" */
    const char *start; /* default system message, or "" */
    const char *user;
    /* text between a user's message and the assistant's answer */
    const char *header;
    const char *end;
    /* token with which the model ends an answer */
    const char *stop;
    bool trim; /* removes white space at both ends of user messages */
    /* true if the format is correct only for conversations of one turn */
    bool one_turn;
    bool end_eos; /* true if `stop` is the eos_token of tokenizer_config.json */
    /* text that templates write before an earlier answer and models write themselves, or NULL */
    const char *head;
    /* text in templates of this format, which remove the reasoning of earlier answers, or NULL */
    const char *mark;
} kvd_chat;

/* values of --chat (format of conversations): none, auto or a format's name; NULL ends the list */
extern const char *const kvd_chat_words[];
enum { KVD_CHAT_NONE, KVD_CHAT_AUTO };

/* Returns the format kvd_chat_words[word], or NULL for "none" and "auto". */
const kvd_chat *kvd_chat_form(int word);

/* Returns the chat format whose conversations a Jinja template writes, or NULL with the reason in
 * *err, which may have a text in any case. */
const kvd_chat *kvd_chat_recognise(const char *template_text, kvd_err *err);

/* Reads the chat template of a model folder and returns its format. *path receives the path of the
 * template, allocated. Fails on unknown formats. */
const kvd_chat *kvd_chat_read(const char *folder, char **path, kvd_err *err);

/* one turn of a conversation, in strings that are tokenized separately */
typedef struct {
    /* strings before the user's message: begin-of-text token, system message, start of the user's
     * turn */
    const char *before[3];
    const char *text; /* user's message, part of the caller's text */
    size_t len;
    /* text between the user's message and the assistant's answer */
    const char *after;
} kvd_chat_pieces;

/* Returns the strings that chat format *c puts around a user's message (UTF-8). `first`: true for
 * the first message of a conversation. */
kvd_chat_pieces kvd_chat_around(const kvd_chat *c, const char *text, bool first);

#endif
