// Writes docs/api.md: every name that the package exports, with its signature and its own comment, which is also what editors show.
// `npm run api` writes the page; test/api.test.ts holds that it is up to date and that nothing public lacks a sentence.
// It reads the sources with the TypeScript 5 inside of ts-morph, because TypeScript 7 has no API in JavaScript yet.
import { readFileSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { ts } from "@ts-morph/common";

export const API_PAGE = "docs/api.md";

interface Entry {
  /** As a program imports it: `outlive/client`. */
  readonly path: string;
  readonly source: string;
}

interface Member {
  readonly name: string;
  readonly type: string;
  readonly sentence: string;
}

interface PublicName {
  readonly name: string;
  readonly entry: string;
  readonly what: "function" | "class" | "interface" | "type" | "value";
  readonly signatures: readonly string[];
  readonly sentence: string;
  readonly extending: readonly string[];
  readonly members: readonly Member[];
}

const root = fileURLToPath(new URL("../", import.meta.url));

/** Everything that the exports map of package.json makes public, in its order; a name that several entry points export is of the first. */
export function publicNames(): readonly PublicName[] {
  const entries = entryPoints();
  const program = ts.createProgram(
    entries.map(({ source }) => source),
    {
      target: ts.ScriptTarget.ESNext,
      module: ts.ModuleKind.NodeNext,
      moduleResolution: ts.ModuleResolutionKind.NodeNext,
      allowImportingTsExtensions: true,
      noEmit: true,
      strict: true,
      skipLibCheck: true,
      types: ["node"],
    },
  );
  const checker = program.getTypeChecker();
  const seen = new Set<ts.Symbol>();
  return entries.flatMap(({ path, source }) => {
    const file = program.getSourceFile(source);
    const module = file === undefined ? undefined : checker.getSymbolAtLocation(file);
    if (module === undefined) throw new Error(`${source} of ${path} is not a module`);
    return checker
      .getExportsOfModule(module)
      .map((symbol) => ({ name: symbol.name, symbol: resolved(checker, symbol) }))
      .filter(({ symbol }) => !seen.has(symbol) && seen.add(symbol))
      .map(({ name, symbol }) => describe(checker, path, name, symbol))
      .toSorted((a, b) => (a.name < b.name ? -1 : 1));
  });
}

/** What lacks a sentence: `outlive Engine.resume`. */
export function undocumented(names: readonly PublicName[]): readonly string[] {
  return names.flatMap(({ entry, name, sentence, members }) => [
    ...(sentence === "" ? [`${entry} ${name}`] : []),
    ...members.filter((member) => member.sentence === "").map((member) => `${entry} ${name}.${member.name}`),
  ]);
}

export function apiPage(names: readonly PublicName[]): string {
  const entries = [...new Set(names.map(({ entry }) => entry))];
  return `# API reference

<!-- Made from the types and their comments by \`npm run api\`. -->

Every name that the package exports, by entry point, with the text that your editor shows. [Settings](settings.md) has the
options with their defaults and limits, and [errors](errors.md) has the error codes. Instants are numbers, in milliseconds
since 1970. Durations that you pass are strings such as "30s"; those that you get are numbers in milliseconds, and their
names end in \`Ms\`.

${entries.map((entry) => `- [\`${entry}\`](#${anchor(entry)})`).join("\n")}

${entries.map((entry) => section(entry, names)).join("\n\n")}
`;
}

function entryPoints(): readonly Entry[] {
  const manifest = JSON.parse(readFileSync(`${root}package.json`, "utf8")) as {
    exports: Record<string, string | { types: string }>;
  };
  return Object.entries(manifest.exports).flatMap(([path, target]) =>
    typeof target === "string"
      ? []
      : [
          {
            path: path.replace(/^\./, "outlive"),
            source: `${root}${target.types.replace("./dist/", "src/").replace(/\.d\.ts$/, ".ts")}`,
          },
        ],
  );
}

function resolved(checker: ts.TypeChecker, symbol: ts.Symbol): ts.Symbol {
  return (symbol.flags & ts.SymbolFlags.Alias) === 0 ? symbol : checker.getAliasedSymbol(symbol);
}

function describe(checker: ts.TypeChecker, entry: string, name: string, symbol: ts.Symbol): PublicName {
  const declarations = symbol.declarations ?? [];
  const type = declarations.find((one) => ts.isInterfaceDeclaration(one) || ts.isClassDeclaration(one));
  const functions = declarations.filter(ts.isFunctionDeclaration);
  const alias = declarations.find(ts.isTypeAliasDeclaration);
  return {
    name,
    entry,
    what:
      functions.length > 0
        ? "function"
        : type !== undefined
          ? ts.isClassDeclaration(type)
            ? "class"
            : "interface"
          : alias !== undefined && (symbol.flags & ts.SymbolFlags.Value) === 0
            ? "type"
            : "value",
    signatures:
      functions.length > 0
        ? publicSignatures(functions).map((one) => signature(name, one))
        : alias !== undefined
          ? [`type ${name}${generics(alias)} = ${flat(alias.type).replace(/^\| /, "")}`]
          : [],
    sentence: commentOf(checker, symbol),
    extending:
      type === undefined ? [] : (type.heritageClauses ?? []).flatMap(({ types }) => types.map((one) => flat(one))),
    members:
      type !== undefined
        ? membersOf(checker, type)
        : alias !== undefined && ts.isTypeLiteralNode(alias.type)
          ? membersOf(checker, alias.type)
          : constants(checker, declarations),
  };
}

/** The overloads of a function; its implementation, if it has overloads, can't be called by its own signature. */
function publicSignatures<T extends ts.FunctionDeclaration | ts.MethodDeclaration>(all: readonly T[]): readonly T[] {
  const overloads = all.filter(({ body }) => body === undefined);
  return overloads.length > 0 ? overloads : all;
}

function membersOf(
  checker: ts.TypeChecker,
  type: ts.InterfaceDeclaration | ts.ClassDeclaration | ts.TypeLiteralNode,
): readonly Member[] {
  const seen = new Set<string>();
  return [...type.members].flatMap((member) => {
    const { name } = member;
    if (name === undefined || ts.isPrivateIdentifier(name) || ts.isComputedPropertyName(name)) return [];
    const hidden = ts.ModifierFlags.Private | ts.ModifierFlags.Protected | ts.ModifierFlags.Override;
    if ((ts.getCombinedModifierFlags(member) & hidden) !== 0 || isInternal(member)) return [];
    const key = ts.isStringLiteral(name) ? name.text : name.getText();
    if (seen.has(key)) return [];
    seen.add(key);
    const symbol = checker.getSymbolAtLocation(name);
    if (symbol === undefined) return [];
    const optional = (symbol.flags & ts.SymbolFlags.Optional) === 0 ? "" : "?";
    return [{ name: `${key}${optional}`, type: memberType(member, symbol), sentence: commentOf(checker, symbol) }];
  });
}

function memberType(member: ts.Node, symbol: ts.Symbol): string {
  if (ts.isMethodDeclaration(member) || ts.isMethodSignature(member)) {
    const all = (symbol.declarations ?? []).filter((one) => ts.isMethodDeclaration(one) || ts.isMethodSignature(one));
    const overloads = all.filter((one) => !ts.isMethodDeclaration(one) || one.body === undefined);
    return (overloads.length > 0 ? overloads : all).map((one) => signature("", one)).join("<br>");
  }
  if (ts.isGetAccessorDeclaration(member)) return member.type === undefined ? "" : flat(member.type);
  if ((ts.isPropertyDeclaration(member) || ts.isPropertySignature(member)) && member.type !== undefined)
    return flat(member.type);
  if (ts.isPropertyDeclaration(member) && member.initializer !== undefined) return flat(member.initializer);
  return "";
}

/** The members of an object of constants such as ErrorCode. */
function constants(checker: ts.TypeChecker, declarations: readonly ts.Declaration[]): readonly Member[] {
  const value = declarations.find(ts.isVariableDeclaration)?.initializer;
  const literal = value !== undefined && ts.isAsExpression(value) ? value.expression : value;
  if (literal === value || literal === undefined || !ts.isObjectLiteralExpression(literal)) return [];
  return literal.properties.filter(ts.isPropertyAssignment).flatMap((property) => {
    const symbol = checker.getSymbolAtLocation(property.name);
    return symbol === undefined
      ? []
      : [{ name: property.name.getText(), type: flat(property.initializer), sentence: commentOf(checker, symbol) }];
  });
}

function isInternal(node: ts.Node): boolean {
  return ts.getJSDocTags(node).some(({ tagName }) => tagName.text === "internal");
}

function signature(name: string, one: ts.SignatureDeclaration): string {
  const result = one.type === undefined ? "" : `: ${flat(one.type)}`;
  return `${name}${generics(one)}(${one.parameters.map(flat).join(", ")})${result}`;
}

function generics({ typeParameters }: { readonly typeParameters?: readonly ts.Node[] | undefined }): string {
  return typeParameters === undefined ? "" : `<${typeParameters.map(flat).join(", ")}>`;
}

/** The source of a node on one line, without comments. */
function flat(node: ts.Node): string {
  return node
    .getText()
    .replaceAll(/\/\*[^]*?\*\/|(?<=^|\s)\/\/.*$/gm, "")
    .replaceAll(/\s+/g, " ")
    .replaceAll(/([([<{]) (?=\S)|,? (?=[)\]>])/g, "$1")
    .trim();
}

function commentOf(checker: ts.TypeChecker, symbol: ts.Symbol): string {
  return ts
    .displayPartsToString(symbol.getDocumentationComment(checker))
    .replaceAll(/\s*\n\s*/g, " ")
    .trim();
}

function section(entry: string, names: readonly PublicName[]): string {
  return `## ${entry}\n\n${names
    .filter((one) => one.entry === entry)
    .map(block)
    .join("\n\n")}`;
}

function block({ name, what, signatures, sentence, extending, members }: PublicName): string {
  return [
    `### ${name}`,
    signatures.length > 0 ? `\`\`\`\n${signatures.join("\n")}\n\`\`\`` : `_${what}_`,
    [sentence, extending.length > 0 ? `Extends ${extending.map((one) => `\`${one}\``).join(", ")}.` : ""]
      .filter((text) => text !== "")
      .join(" "),
    members.map(line).join("\n"),
  ]
    .filter((text) => text !== "")
    .join("\n\n");
}

function line({ name, type, sentence }: Member): string {
  const typed = type === "" ? "" : `: ${type.split("<br>").map(code).join(" or ")}`;
  return `- **\`${name}\`**${typed}${sentence === "" ? "" : `. ${sentence}`}`;
}

function code(text: string): string {
  return text.includes("`") ? `\`\`${text}\`\`` : `\`${text}\``;
}

function anchor(entry: string): string {
  return entry.replaceAll(/[^a-z-]/g, "");
}

if (import.meta.main) writeFileSync(`${root}${API_PAGE}`, apiPage(publicNames()));
