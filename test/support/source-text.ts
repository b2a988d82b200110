// Reads TypeScript as text, for the tests that hold the architecture: which characters are code, and what a file imports.
// It is a scanner and no parser: it knows comments, strings, templates and regular expressions, and nothing of types.

export type Import = { readonly specifier: string; readonly typeOnly: boolean };

/**
 * The text with everything that is not code blanked: comments, and the contents of strings, templates and regular expressions.
 * Quotes, line breaks and the code inside `${}` stay, and so does every offset.
 */
export function codeOf(text: string): string {
  return scan(text).code;
}

/** The opposite of `codeOf`: comments and the contents of strings, templates and regular expressions, with everything else blanked but quotes. */
export function proseOf(text: string): string {
  const code = codeOf(text);
  let prose = "";
  for (let at = 0; at < text.length; at++)
    prose += code[at] === text[at] && !/["'`\n]/.test(text[at]!) ? " " : text[at];
  return prose;
}

/** The comments of a text, one per line or block, and those of the SQL in it. */
export function commentsOf(text: string): string {
  return [...scan(text).comments, ...(text.match(/(?<=^\s*|[,;]\s*)-- .*$/gm) ?? [])].join("\n");
}

function scan(text: string): { readonly code: string; readonly comments: readonly string[] } {
  const comments: string[] = [];
  const out = text.split("");
  const blank = (from: number, to: number): void => {
    for (let i = from; i < to; i++) if (out[i] !== "\n") out[i] = " ";
  };
  // For every open `${`, the number of braces open inside it.
  const interpolations: number[] = [];
  let at = 0;
  while (at < text.length) {
    const comment = match(/\/\/.*|\/\*[^]*?\*\//y, text, at);
    if (comment !== undefined) {
      blank(at, at + comment.length);
      comments.push(comment);
      at += comment.length;
      continue;
    }
    const quoted =
      match(/"(?:\\[^]|[^"\\\n])*"|'(?:\\[^]|[^'\\\n])*'/y, text, at) ??
      (mayStartRegExp(out, at) ? match(/\/(?:\\.|\[(?:\\.|[^\]\\\n])*\]|[^/\\\n[])+\//y, text, at) : undefined);
    if (quoted !== undefined) {
      blank(at + 1, at + quoted.length - 1);
      at += quoted.length;
      continue;
    }
    const depth = interpolations.at(-1);
    const closesInterpolation = text[at] === "}" && depth === 0;
    if (text[at] === "`" || closesInterpolation) {
      if (closesInterpolation) interpolations.pop();
      const content = match(/(?:\\[^]|\$(?!\{)|[^`\\$])*/y, text, at + 1) ?? "";
      blank(at + 1, at + 1 + content.length);
      at += 1 + content.length;
      if (text.startsWith("${", at)) {
        interpolations.push(0);
        at += 2;
      } else {
        at += 1;
      }
      continue;
    }
    if (depth !== undefined && text[at] === "{") interpolations[interpolations.length - 1] = depth + 1;
    if (depth !== undefined && text[at] === "}") interpolations[interpolations.length - 1] = depth - 1;
    at += 1;
  }
  return { code: out.join(""), comments };
}

/** What a file refers to: static and dynamic imports, re-exports, and files named by `new URL("./jobs.ts", import.meta.url)`. */
export function importsOf(text: string): Import[] {
  const code = codeOf(text);
  const found: Import[] = [];
  const forms = [
    /\b(?:import|export)\b(?<type>\s+type\b(?!\s+from\b))?[^;"'`()=]*?\bfrom\s*(?<quote>["'])\s*\k<quote>/dg,
    /\bimport\s*(?<quote>["'])\s*\k<quote>/dg,
    /\b(?:import|require|getBuiltinModule|import\.meta\.resolve)\s*\(\s*(?<quote>["'`])\s*\k<quote>/dg,
    /\bnew\s+URL\s*\(\s*(?<quote>["'`])\s*\k<quote>\s*,\s*import\.meta\.url\b/dg,
  ];
  for (const form of forms) {
    for (const hit of code.matchAll(form)) {
      const opening = hit.indices?.groups?.["quote"]?.[0] ?? 0;
      const closing = code.indexOf(code.charAt(opening), opening + 1);
      found.push({
        specifier: text.slice(opening + 1, closing),
        typeOnly: hit.groups?.["type"] !== undefined,
      });
    }
  }
  return found;
}

function match(pattern: RegExp, text: string, at: number): string | undefined {
  pattern.lastIndex = at;
  return pattern.exec(text)?.[0];
}

// A slash after a value divides; anywhere else it starts a regular expression.
function mayStartRegExp(out: readonly string[], at: number): boolean {
  const before = out
    .slice(Math.max(0, at - 40), at)
    .join("")
    .trimEnd();
  return /(?:^|[^\w$)\]}"'`]|\b(?:return|typeof|case|in|of|do|else|void|delete|throw|await|yield))$/.test(before);
}
