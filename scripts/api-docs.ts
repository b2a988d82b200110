// Writes docs/api.md: every name that the package exports, with its signature and its own comment, which is also what editors show.
// `npm run api` writes the page; test/api.test.ts holds that it is up to date and that nothing public lacks a sentence.
// It reads the sources with the TypeScript 5 inside of ts-morph, because TypeScript 7 has no API in JavaScript yet.
import { readFileSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { getLibFiles, ts } from "@ts-morph/common";

export const API_PAGE = "docs/api.md";

interface Entry {
  /** As a program imports it: `outlive/client`. */
  readonly path: string;
  readonly source: string;
}

export interface Member {
  readonly name: string;
  readonly type: string;
  readonly sentence: string;
  /** The members of its own type, and of its parameters, where these are written in place. */
  readonly members: readonly Member[];
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

/** What the page calls the types that are not exported, but that a program meets in a signature, a result or an editor. */
const FURTHER = "Further types";

/**
 * Everything that the exports map of package.json makes public, in its order, and then the types that these names use. A name that several
 * entry points export is of the first.
 */
export function publicNames(): readonly PublicName[] {
  const entries = entryPoints();
  const program = programOf(entries.map(({ source }) => source));
  const checker = program.getTypeChecker();
  const exported = new Map<ts.Symbol, { readonly name: string; readonly path: string }>();
  for (const { path, source } of entries) {
    const file = program.getSourceFile(source);
    const module = file === undefined ? undefined : checker.getSymbolAtLocation(file);
    if (module === undefined) throw new Error(`${source} of ${path} is not a module`);
    for (const symbol of checker.getExportsOfModule(module)) {
      const target = resolved(checker, symbol);
      if (!exported.has(target)) exported.set(target, { name: symbol.name, path });
    }
  }
  const page: Page = { checker, exported };
  for (const [{ name: here }, { name }] of exported) if (here !== name) renamed.set(here, name);
  const used = [...usedBy(page)].map((symbol) => describe(page, FURTHER, symbol.name, symbol)).toSorted(byName);
  return [
    ...entries.flatMap(({ path }) =>
      [...exported]
        .filter(([, one]) => one.path === path)
        .map(([symbol, { name }]) => describe(page, path, name, symbol))
        .toSorted(byName),
    ),
    ...used,
  ];
}

function programOf(files: readonly string[]): ts.Program {
  const options = {
    target: ts.ScriptTarget.ESNext,
    module: ts.ModuleKind.NodeNext,
    moduleResolution: ts.ModuleResolutionKind.NodeNext,
    allowImportingTsExtensions: true,
    noEmit: true,
    strict: true,
    skipLibCheck: true,
    types: ["node"],
  };
  const host = ts.createCompilerHost(options);
  // ts-morph keeps the declarations of the language in its code.
  const libraries = new Map(getLibFiles().map(({ fileName, text }) => [`${LIBRARIES}${fileName}`, text]));
  return ts.createProgram(files, options, {
    ...host,
    getDefaultLibLocation: () => LIBRARIES,
    getDefaultLibFileName: (of) => LIBRARIES + ts.getDefaultLibFileName(of),
    fileExists: (path) => libraries.has(path) || host.fileExists(path),
    readFile: (path) => libraries.get(path) ?? host.readFile(path),
    getSourceFile: (path, version) => {
      const text = libraries.get(path) ?? host.readFile(path);
      return text === undefined ? undefined : ts.createSourceFile(path, text, version, true);
    },
  });
}

const LIBRARIES = "/node_modules/typescript/lib/";

interface Page {
  readonly checker: ts.TypeChecker;
  /** What the entry points export, and as what. */
  readonly exported: ReadonlyMap<ts.Symbol, { readonly name: string; readonly path: string }>;
}

function byName(a: PublicName, b: PublicName): number {
  return a.name < b.name ? -1 : 1;
}

/** Types of ours that what is exported refers to, directly or through another of them. What a type extends is shown as its own members. */
function usedBy({ checker, exported }: Page): ReadonlySet<ts.Symbol> {
  const found = new Set<ts.Symbol>();
  const visit = (node: ts.Node): void => {
    if (ts.isBlock(node) || isHidden(node)) return;
    if (ts.isHeritageClause(node)) {
      for (const base of node.types)
        for (const name of [base.expression, ...(base.typeArguments ?? []).map(nameOf)]) {
          const symbol = name && checker.getSymbolAtLocation(name);
          if (symbol === undefined || exported.has(resolved(checker, symbol))) continue;
          for (const declaration of ours(resolved(checker, symbol))) declaration.forEachChild(visit);
        }
      return;
    }
    if (ts.isPropertyDeclaration(node) && node.type !== undefined) return visit(node.type);
    if (ts.isTypeReferenceNode(node)) {
      const symbol = checker.getSymbolAtLocation(node.typeName);
      if (symbol !== undefined) add(resolved(checker, symbol));
    }
    node.forEachChild(visit);
  };
  const add = (symbol: ts.Symbol): void => {
    if (exported.has(symbol) || found.has(symbol) || (symbol.flags & ts.SymbolFlags.TypeParameter) !== 0) return;
    const declarations = ours(symbol);
    if (declarations.length === 0) return;
    found.add(symbol);
    declarations.forEach(visit);
  };
  for (const symbol of exported.keys()) ours(symbol).forEach(visit);
  return found;
}

function nameOf(type: ts.TypeNode): ts.Node | undefined {
  return ts.isTypeReferenceNode(type) ? type.typeName : undefined;
}

function ours(symbol: ts.Symbol): readonly ts.Declaration[] {
  return (symbol.declarations ?? []).filter((one) => one.getSourceFile().fileName.startsWith(`${root}src/`));
}

/** What lacks a sentence: `outlive Engine.resume`. */
export function undocumented(names: readonly PublicName[]): readonly string[] {
  return names.flatMap(({ entry, name, sentence, members }) => [
    ...(sentence === "" ? [`${entry} ${name}`] : []),
    ...undocumentedMembers(`${entry} ${name}`, members),
  ]);
}

function undocumentedMembers(of: string, members: readonly Member[]): readonly string[] {
  return members.flatMap(({ name, sentence, members: inner }) => [
    ...(sentence === "" ? [`${of}.${name}`] : []),
    ...undocumentedMembers(`${of}.${name}`, inner),
  ]);
}

/** Options that may be omitted and do not say what happens then: `outlive EngineOptions.poll`. */
export function withoutDefault(names: readonly PublicName[]): readonly string[] {
  const optional = (of: string, members: readonly Member[]): readonly string[] =>
    members.flatMap(({ name, type, sentence, members: inner }) => {
      // A group of options is what its members are, and a filter that is omitted leaves nothing out.
      const isGroup = inner.length > 0 || /Options(?:\b|$)/.test(type);
      const says = /[Dd]efault|^Only |of the page before|^`next` of|Either this or/.test(sentence);
      const missing = name.endsWith("?") && !isGroup && !says ? [`${of}.${name}`] : [];
      return [...missing, ...optional(`${of}.${name}`, inner)];
    });
  return names
    .filter(({ name }) => /(?:Options|Config)$/.test(name))
    .flatMap(({ entry, name, members }) => optional(`${entry} ${name}`, members));
}

export function apiPage(names: readonly PublicName[]): string {
  const entries = [...new Set(names.map(({ entry }) => entry))];
  return `# API reference

<!-- Made from the types and their comments by \`npm run api\`. -->

Every name that the package exports, by entry point, with the text that your editor shows. [Settings](settings.md) has the
options with their defaults and limits, and [errors](errors.md) has the error codes. Instants are numbers, in milliseconds
since 1970. Durations that you pass are strings such as "30s"; those that you get are numbers in milliseconds, and their
names end in \`Ms\`. Types that no entry point exports are in [the last section](#further-types).

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

function describe(page: Page, entry: string, name: string, symbol: ts.Symbol): PublicName {
  const { checker } = page;
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
          ? [`type ${name}${generics(alias)} = ${aliased(checker, alias)}`]
          : [],
    sentence: commentOf(checker, symbol),
    extending: type === undefined ? [] : shownBases(page, type),
    members:
      type !== undefined
        ? [...membersOf(checker, type.members), ...inheritedBy(page, symbol, type)]
        : alias !== undefined && (symbol.flags & ts.SymbolFlags.Value) === 0
          ? membersIn(checker, [alias.type])
          : functions.length > 0
            ? membersIn(
                checker,
                publicSignatures(functions).flatMap(({ parameters }) => parameters),
              )
            : constants(checker, declarations),
  };
}

/** The values of `(typeof STATES)[number]` are in a list that programs can't see. */
function aliased(checker: ts.TypeChecker, { type }: ts.TypeAliasDeclaration): string {
  return ts.isIndexedAccessTypeNode(type) && flat(type).startsWith("(typeof ")
    ? checker.typeToString(checker.getTypeFromTypeNode(type), undefined, ts.TypeFormatFlags.NoTruncation)
    : flat(type).replace(/^\| /, "");
}

/** The overloads of a function; its implementation, if it has overloads, can't be called by its own signature. */
function publicSignatures<T extends ts.FunctionDeclaration | ts.MethodDeclaration>(all: readonly T[]): readonly T[] {
  const overloads = all.filter(({ body }) => body === undefined);
  return overloads.length > 0 ? overloads : all;
}

/** Bases that the page describes elsewhere, or that are not ours; the members of all others are listed with the type's own. */
function shownBases({ checker, exported }: Page, type: ts.InterfaceDeclaration | ts.ClassDeclaration): string[] {
  return (type.heritageClauses ?? []).flatMap(({ types }) =>
    types
      .filter((base) => {
        const symbol = checker.getSymbolAtLocation(base.expression);
        if (symbol === undefined) return false;
        if (ours(resolved(checker, symbol)).length > 0) return exported.has(resolved(checker, symbol));
        const [of] = base.typeArguments ?? [];
        const name = of && nameOf(of);
        const picked = name && checker.getSymbolAtLocation(name);
        return picked === undefined || exported.has(resolved(checker, picked));
      })
      .map((one) => flat(one)),
  );
}

function inheritedBy(
  { checker, exported }: Page,
  symbol: ts.Symbol,
  type: ts.InterfaceDeclaration | ts.ClassDeclaration,
): readonly Member[] {
  return checker
    .getDeclaredTypeOfSymbol(symbol)
    .getProperties()
    .flatMap((property) => {
      const declaration = ours(property)[0];
      const parent = declaration?.parent;
      if (declaration === undefined || parent === undefined || parent === type || isHidden(declaration)) return [];
      const base =
        ts.isInterfaceDeclaration(parent) || ts.isClassDeclaration(parent)
          ? parent.name && checker.getSymbolAtLocation(parent.name)
          : undefined;
      if (base !== undefined && exported.has(base)) return [];
      return membersOf(checker, [declaration as ts.TypeElement]);
    });
}

function membersOf(checker: ts.TypeChecker, members: readonly (ts.TypeElement | ts.ClassElement)[]): readonly Member[] {
  const seen = new Set<string>();
  return members.flatMap((member) => {
    const { name } = member;
    if (name === undefined || ts.isPrivateIdentifier(name) || ts.isComputedPropertyName(name)) return [];
    if (isHidden(member)) return [];
    const key = ts.isStringLiteral(name) ? name.text : name.getText();
    // A sentence as a name is what the compiler prints for a mistake.
    if (seen.has(key) || /[ ~]/.test(key) || isAbsent(member)) return [];
    seen.add(key);
    const symbol = checker.getSymbolAtLocation(name);
    if (symbol === undefined) return [];
    const optional = (symbol.flags & ts.SymbolFlags.Optional) === 0 ? "" : "?";
    return [
      {
        name: `${key}${optional}`,
        type: memberType(member, symbol),
        sentence: commentOf(checker, symbol),
        members: membersIn(checker, symbol.declarations ?? [member]),
      },
    ];
  });
}

/** The members of the object types that are written inside of these nodes. Of those with the same name, the first that has a sentence. */
function membersIn(checker: ts.TypeChecker, nodes: readonly ts.Node[]): readonly Member[] {
  const found = new Map<string, Member>();
  const visit = (node: ts.Node): void => {
    if (ts.isBlock(node) || ts.isObjectLiteralExpression(node)) return;
    // What a conditional type compares with is not a value of it.
    if (ts.isConditionalTypeNode(node)) return [node.trueType, node.falseType].forEach(visit);
    if (!ts.isTypeLiteralNode(node)) return node.forEachChild(visit);
    for (const member of membersOf(checker, [...node.members])) {
      const name = member.name.replace("?", "");
      if ((found.get(name)?.sentence ?? "") === "") found.set(name, member);
    }
  };
  nodes.forEach(visit);
  return [...found.values()];
}

/** `blob?: undefined` says that something must not be there. */
function isAbsent(member: ts.Node): boolean {
  return ts.isPropertySignature(member) && /^(?:undefined|never)$/.test(member.type?.getText() ?? "");
}

function isHidden(node: ts.Node): boolean {
  if (!ts.isClassElement(node) && !ts.isTypeElement(node)) return false;
  if (node.name !== undefined && ts.isPrivateIdentifier(node.name)) return true;
  const hidden = ts.ModifierFlags.Private | ts.ModifierFlags.Protected | ts.ModifierFlags.Override;
  return (ts.getCombinedModifierFlags(node) & hidden) !== 0 || isInternal(node);
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
      : [
          {
            name: property.name.getText(),
            type: flat(property.initializer),
            sentence: commentOf(checker, symbol),
            members: [],
          },
        ];
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

/** What is exported under another name than the sources use: `TypedRun` is `Run`. */
const renamed = new Map<string, string>();

/** The source of a node on one line, without comments. */
function flat(node: ts.Node): string {
  return node
    .getText()
    .replaceAll(/\/\*[^]*?\*\/|(?<=^|\s)\/\/.*$/gm, "")
    .replaceAll(/\s+/g, " ")
    .replaceAll(/([([<{]) (?=\S)|,? (?=[)\]>])/g, "$1")
    .replaceAll(/\b[A-Z]\w+\b/g, (name) => renamed.get(name) ?? name)
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
    members.map((member) => line(member, "")).join("\n"),
  ]
    .filter((text) => text !== "")
    .join("\n\n");
}

function line({ name, type, sentence, members }: Member, indent: string): string {
  // What is written in place is shown by its members.
  const shown = members.length > 0 ? type.replaceAll(/^\{[^{}]*\}/g, "object") : type;
  const typed = shown === "" ? "" : `: ${shown.split("<br>").map(code).join(" or ")}`;
  return [
    `${indent}- **\`${name}\`**${typed}${sentence === "" ? "" : `. ${sentence}`}`,
    ...members.map((member) => line(member, `${indent}  `)),
  ].join("\n");
}

function code(text: string): string {
  return text.includes("`") ? `\`\`${text}\`\`` : `\`${text}\``;
}

function anchor(entry: string): string {
  return entry
    .toLowerCase()
    .replaceAll(" ", "-")
    .replaceAll(/[^a-z-]/g, "");
}

if (import.meta.main) writeFileSync(`${root}${API_PAGE}`, apiPage(publicNames()));
