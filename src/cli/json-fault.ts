// Where a text stops being JSON. The runtime's own message has no position for most faults.

const SPACE = /[ \t\n\r]*/uy;
const SCALAR =
  /"(?:[ !#-[\]-\u{10ffff}]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?(?![\w.])|(?:true|false|null)(?!\w)/uy;
/** What of a broken text is fine: to point behind it, not at its first quote. */
const PART_OF_STRING = /"(?:[ !#-[\]-\u{10ffff}]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*/uy;

/** The index of the first character that can't be there (the length: something is missing at the end); null: it is JSON. */
export function jsonFault(text: string): number | null {
  let at = 0;
  const eat = (pattern: RegExp): boolean => {
    pattern.lastIndex = at;
    const found = pattern.exec(text);
    if (found) at += found[0].length;
    return found !== null;
  };
  const next = (): string => {
    eat(SPACE);
    return text[at] ?? "";
  };
  const scalar = (string: boolean): boolean => {
    const quoted = next() === '"';
    if ((quoted || !string) && eat(SCALAR)) return true;
    if (quoted) eat(PART_OF_STRING);
    return false;
  };
  const member = (close: string): boolean => {
    if (close === "]") return value();
    if (!scalar(true) || next() !== ":") return false;
    at++;
    return value();
  };
  const value = (): boolean => {
    const close = { "{": "}", "[": "]" }[next()];
    if (close === undefined) return scalar(false);
    at++;
    if (next() === close) {
      at++;
      return true;
    }
    for (;;) {
      if (!member(close)) return false;
      const sign = next();
      if (sign !== "," && sign !== close) return false;
      at++;
      if (sign === close) return true;
    }
  };
  return value() && next() === "" ? null : at;
}
