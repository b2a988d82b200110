// Whether a statement of the user's is transaction control, by its first words. Comments and empty statements before and between
// them are skipped as PostgreSQL skips them. One pass over the text: a statement may begin with any number of comments.

/** BEGIN, START TRANSACTION, COMMIT, END, ABORT, PREPARE TRANSACTION, and ROLLBACK unless it goes back TO a savepoint. */
export function isTransactionControl(sql: string): boolean {
  const words = firstWords(sql);
  switch (words.next()) {
    case "begin":
    case "commit":
    case "end":
    case "abort":
      return true;
    case "start":
    case "prepare":
      return words.next() === "transaction";
    case "rollback": {
      const second = words.next();
      return (second === "work" || second === "transaction" ? words.next() : second) !== "to";
    }
    default:
      return false;
  }
}

/** The words at the beginning of the statement, in small letters; "" after the last one. */
function firstWords(sql: string): { next: () => string } {
  let at = skipEmpty(sql, 0);
  return {
    next() {
      WORD.lastIndex = at = skipBlank(sql, at);
      const word = WORD.exec(sql)?.[0] ?? "";
      at += word.length;
      return word.toLowerCase();
    },
  };
}

const WORD = /[A-Za-z_\u0080-\uffff][\w$\u0080-\uffff]*/y;

/** Past blanks, comments and empty statements. */
function skipEmpty(sql: string, from: number): number {
  let at = skipBlank(sql, from);
  while (sql[at] === ";") at = skipBlank(sql, at + 1);
  return at;
}

/** Past white space and comments. */
function skipBlank(sql: string, from: number): number {
  let at = from;
  for (;;) {
    const character = sql[at];
    if (character !== undefined && " \t\n\r\f\v".includes(character)) at++;
    else if (character === "-" && sql[at + 1] === "-") at = endOfLine(sql, at + 2);
    else if (character === "/" && sql[at + 1] === "*") at = endOfComment(sql, at + 2);
    else return at;
  }
}

function endOfLine(sql: string, from: number): number {
  let at = from;
  while (at < sql.length && sql[at] !== "\n" && sql[at] !== "\r") at++;
  return at;
}

/** In PostgreSQL a comment may hold another. One that does not end takes the rest of the text. */
function endOfComment(sql: string, from: number): number {
  let depth = 1;
  let at = from;
  while (at < sql.length && depth > 0) {
    const two = sql.slice(at, at + 2);
    if (two === "*/") depth--;
    else if (two === "/*") depth++;
    at += two === "*/" || two === "/*" ? 2 : 1;
  }
  return at;
}
