// From the lines of `strace -f -y -xx` to calls in the order in which they ended. Every byte is in the trace; a line that can't be
// understood is an error, because a write that was overlooked would make every later verdict worthless.

export interface Call {
  readonly name: string;
  /** Its place among the beginnings and ends of all calls: what had ended before it began was there when it began. */
  readonly began: number;
  readonly ended: number;
  /** The file of its first descriptor; undefined: none, or one that has no name any more. */
  readonly file: string | undefined;
  /** Its arguments as strace wrote them. */
  readonly args: string;
  /** What it returned; -1: it failed. */
  readonly result: number;
}

const LINE = /^(\d+) +(?:<\.\.\. (\w+) resumed>(.*)|(\w+)\((.*)|(?:\+\+\+|---).*)$/s;
const UNFINISHED = " <unfinished ...>";
const RESULT = /\) += (\?|-?\d+|0x[0-9a-f]+)(?:<[^>]*>(?:\(deleted\))?)?(?: [A-Z].*)?$/s;
const DESCRIPTOR = /^(?:\d+|AT_FDCWD)<((?:\\x[0-9a-f]{2})*)>(\(deleted\))?/;

export function parseTrace(text: string): Call[] {
  const calls: Call[] = [];
  const unfinished = new Map<string, { name: string; args: string; began: number }>();
  let place = 0;
  for (const line of text.split("\n")) {
    if (line === "") continue;
    place++;
    const parts = LINE.exec(line);
    if (!parts) throw new Error(`a line of the trace is not understood: ${line.slice(0, 200)}`);
    const [, pid, resumed, rest, name, start] = parts;
    if (name !== undefined && start!.endsWith(UNFINISHED)) {
      unfinished.set(pid!, { name, args: start!.slice(0, -UNFINISHED.length), began: place });
    } else if (name !== undefined) {
      push(calls, name, start!, place, place);
    } else if (resumed !== undefined) {
      const begun = unfinished.get(pid!);
      if (begun?.name !== resumed) throw new Error(`a call was resumed that never began: ${line.slice(0, 200)}`);
      unfinished.delete(pid!);
      push(calls, resumed, begun.args + rest!, begun.began, place);
    }
  }
  return calls;
}

function push(calls: Call[], name: string, text: string, began: number, ended: number): void {
  const result = RESULT.exec(text);
  if (!result) throw new Error(`a call of the trace has no result: ${name}(${text.slice(0, 200)}`);
  // A process that was killed meanwhile has no answer.
  if (result[1] === "?") return;
  const args = text.slice(0, result.index);
  const [, path, deleted] = DESCRIPTOR.exec(args) ?? [];
  const file = path === undefined || deleted !== undefined ? undefined : bytesOf(path).toString();
  calls.push({ name, began, ended, file, args, result: Number(result[1]) });
}

/** The texts among the arguments: contents and paths. One that strace cut short is an error. */
export function textsOf(call: Call): Buffer[] {
  return [...call.args.matchAll(/"((?:\\x[0-9a-f]{2})*)"(\.\.\.)?/g)].map(([, hex, cut]) => {
    if (cut !== undefined) throw new Error(`strace cut the text of a ${call.name} short`);
    return bytesOf(hex!);
  });
}

function bytesOf(escaped: string): Buffer {
  return Buffer.from(escaped.replaceAll("\\x", ""), "hex");
}
