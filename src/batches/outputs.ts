// Output files of a batch. What a row writes is kept with its end, as parts of its block; the file is put together in the order of the lines when
// the batch has ended. Two attempts never keep the same row twice, but one attempt may send a part twice: a line counts once.
import type { OutputPart } from "../job/batches.ts";
import { ErrorCode, OutliveError } from "../job/errors.ts";
import type { Batches, OutputPage } from "../stores/batches.ts";
import { noBatch } from "./submission.ts";

/** What one row may write to one file at a time, in characters. */
const MAX_TEXT = 1 << 20;
/** What one row may write to all files, in characters. */
const MAX_ROW = 16 << 20;
/** A part has no more characters than this, and one row: the texts of a part are one string, and a string has at most 512 Mi. */
const MAX_PART = 16 << 20;
const MAX_NAME = 100;
/**
 * How many blocks one read of an assembly brings, at most and at first, and how many characters it should. The next read is under way while these are put
 * together, so two of them are in memory.
 */
const PAGE = 100;
const FIRST_PAGE = 4;
const PAGE_CHARACTERS = 8 << 20;
/** How many characters are encoded at once, at least. */
const CHUNK = 1 << 16;
/** Behind a part whose lines are in order: white space, so that a program which does not know it reads the same JSON. */
const IN_ORDER = "\n";
/**
 * The end of one text and the begin of the next. A quote inside of a text has a backslash before it, and the one that opens a text a comma; so any other is
 * the end of one. Without these, the texts of a part are one JSON string: reading that takes half as long as an array for each line.
 */
const BETWEEN = /(?<=[^\\,])"\],\[\d+,"/g;

export function assertOutput(
  file: unknown,
  text: unknown,
  { line, written }: { readonly line: number; readonly written: number },
): void {
  const wrong =
    typeof file !== "string" || !/^[A-Za-z0-9][A-Za-z0-9._-]*$/.test(file) || file.length > MAX_NAME
      ? [`The output file ${JSON.stringify(file)} is not a name`, `Use letters, digits and . _ -, at most ${MAX_NAME}.`]
      : typeof text !== "string"
        ? [`What line ${line} writes to ${file} is not a text`, "Pass a string."]
        : text.length > MAX_TEXT
          ? [`Line ${line} writes ${text.length} characters to ${file} at once`, `Write at most ${MAX_TEXT} per call.`]
          : written + text.length > MAX_ROW
            ? [`Line ${line} writes more than ${MAX_ROW} characters`, "Write less, or to a blob of your own."]
            : null;
  if (wrong === null) return;
  throw new OutliveError(ErrorCode.optionInvalid, `${wrong[0]}.`, wrong[1]!, { file, line });
}

/** What these rows wrote: one part per file, or several if it is much. */
export function partsOf(
  rows: readonly {
    readonly line: number;
    readonly texts: readonly { readonly file: string; readonly text: string }[];
  }[],
): OutputPart[] {
  const files = new Map<string, [line: number, text: string][]>();
  for (const { line, texts } of rows) {
    for (const { file, text } of texts) {
      const part = files.get(file);
      const last = part?.at(-1);
      if (last?.[0] === line) last[1] += text;
      else if (part) part.push([line, text]);
      else files.set(file, [[line, text]]);
    }
  }
  return [...files].flatMap(([file, texts]) => {
    // Rows that run at once end in any order.
    texts.sort(([a], [b]) => a - b);
    return pieces(texts).map((piece) => ({ file, texts: JSON.stringify(piece) + IN_ORDER }));
  });
}

function pieces(texts: Lines): Lines[] {
  const cut: Lines[] = [[]];
  let characters = 0;
  for (const text of texts) {
    if (characters >= MAX_PART) {
      cut.push([]);
      characters = 0;
    }
    cut.at(-1)!.push(text);
    characters += text[1].length;
  }
  return cut;
}

/**
 * A file of a batch, in the order of the lines. The rows of a later round stand where their lines belong. Of a batch that is purged meanwhile nothing more
 * is found: a worker that was silent until then must not put half a file in the place of the whole one.
 */
export async function* assembled(
  batches: Batches,
  { id, round }: { readonly id: string; readonly round: number },
  file: string,
): AsyncGenerator<Uint8Array> {
  const encoder = new TextEncoder();
  let joined = "";
  for await (const page of round === 1 ? firstRound(batches, id, file) : allRounds(batches, id, round, file))
    for (const text of page) {
      joined += text;
      if (joined.length < CHUNK) continue;
      yield encoder.encode(joined);
      joined = "";
    }
  if (joined !== "") yield encoder.encode(joined);
  // Its row goes first: if it is there, all that was read was.
  if ((await batches.get([id])).length === 0) throw noBatch(id);
}

async function* firstRound(batches: Batches, id: string, file: string): AsyncGenerator<Iterable<string>> {
  for await (const blocks of pagesOf(batches, id, 1, file)) yield Iterator.from(blocks).map(textOf);
}

async function* allRounds(batches: Batches, id: string, round: number, file: string): AsyncGenerator<Iterable<string>> {
  const rounds = Array.from({ length: round }, (_, at) => linesIn(pagesOf(batches, id, at + 1, file)));
  for await (const lines of merged(rounds)) yield lines.map(([, text]) => text);
}

type Lines = [line: number, text: string][];

/** What the blocks of a round wrote to the file, by line. A page at a time: a step of a generator for each block cost as much as the text in it. */
async function* pagesOf(
  batches: Batches,
  batch: string,
  round: number,
  file: string,
): AsyncGenerator<OutputPage["blocks"]> {
  let page = FIRST_PAGE;
  const read = (after: number | null): Promise<OutputPage> => {
    const reading = batches.outputs(batch, round, file, after, page);
    // Heard when its turn comes; the assembly may end before that.
    reading.catch(() => {});
    return reading;
  };
  for (let reading: Promise<OutputPage> | null = read(null); reading !== null;) {
    const { blocks, next }: OutputPage = await reading;
    page = Math.min(PAGE, Math.max(1, Math.floor((PAGE_CHARACTERS * blocks.length) / (1 + charactersIn(blocks)))));
    reading = next === null ? null : read(next);
    yield blocks;
  }
}

function charactersIn(blocks: OutputPage["blocks"]): number {
  let characters = 0;
  for (const parts of blocks) for (const part of parts) characters += part.length;
  return characters;
}

async function* linesIn(pages: AsyncIterable<OutputPage["blocks"]>): AsyncGenerator<Lines> {
  for await (const page of pages) for (const parts of page) yield linesOf(parts);
}

/** Most blocks end in one write: then nothing has to be sorted, and no line is there twice. */
function textOf(parts: readonly string[]): string {
  const [first] = parts;
  const lines =
    parts.length === 1 && first!.endsWith(IN_ORDER)
      ? (JSON.parse(first!.replaceAll(BETWEEN, "")) as Lines)
      : linesOf(parts);
  return lines.length === 1 ? lines[0]![1] : lines.map(([, text]) => text).join("");
}

function linesOf(parts: readonly string[]): Lines {
  const texts = new Map<number, string>();
  for (const part of parts)
    for (const [line, text] of JSON.parse(part) as Lines) if (!texts.has(line)) texts.set(line, text);
  return [...texts].toSorted(([a], [b]) => a - b);
}

/** Several streams of lines as one, by line. */
async function* merged(streams: readonly AsyncGenerator<Lines>[]): AsyncGenerator<Lines> {
  const next = async (
    stream: AsyncGenerator<Lines>,
  ): Promise<{ stream: AsyncGenerator<Lines>; lines: Lines } | null> => {
    const { done, value } = await stream.next();
    return done ? null : { stream, lines: value };
  };
  let heads = (await Promise.all(streams.map(next))).filter((head) => head !== null);
  while (heads.length > 0) {
    const first = heads.reduce((a, b) => (b.lines[0]![0] < a.lines[0]![0] ? b : a));
    const bound = Math.min(...heads.filter((head) => head !== first).map(({ lines }) => lines[0]![0]));
    const cut = first.lines.findIndex(([line]) => line > bound);
    if (cut === -1) {
      yield first.lines;
      const following = await next(first.stream);
      heads = heads.flatMap((head) => (head !== first ? [head] : following ? [following] : []));
    } else {
      yield first.lines.slice(0, cut);
      first.lines = first.lines.slice(cut);
    }
  }
}
