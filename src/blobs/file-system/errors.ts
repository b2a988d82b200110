// What the file system refuses, as errors of Outlive: a stable code, what was being done, and the next thing to do.
import { ErrorCode, OutliveError } from "../../job/errors.ts";

const WORDS: Readonly<Record<string, readonly [ErrorCode, string]>> = {
  ENOSPC: [ErrorCode.blobsFull, "Nothing was stored. Free disk space and try again."],
  EDQUOT: [ErrorCode.blobsFull, "Nothing was stored. Raise this user's disk quota or free disk space, and try again."],
  EROFS: [ErrorCode.blobsReadOnly, "Nothing was changed. Mount the file system for writing, or name another folder."],
  EACCES: [ErrorCode.blobsForbidden, "Nothing was changed. Make this user the owner of the folder and of all in it."],
  EPERM: [ErrorCode.blobsForbidden, "Nothing was changed. Make this user the owner of the folder and of all in it."],
  ENOTDIR: [ErrorCode.blobsUnusable, "There is a file where a folder is needed. Use another folder, or move the file."],
  EMFILE: [
    ErrorCode.blobsFailed,
    "This process has too many files open. Raise its limit (ulimit -n), or lower the concurrency.",
  ],
};

export function codeOf(thrown: unknown): string | undefined {
  const code = (thrown as NodeJS.ErrnoException | null)?.code;
  return typeof code === "string" ? code : undefined;
}

/** Wraps an error of a system call; returns any other unchanged, for instance one of the stream that was put. */
export function explained(doing: string, path: string, thrown: unknown): unknown {
  if (thrown instanceof OutliveError || (thrown as NodeJS.ErrnoException | null)?.syscall === undefined) return thrown;
  const code = codeOf(thrown);
  const [ours, hint] = WORDS[code ?? ""] ?? [
    ErrorCode.blobsFailed,
    "Nothing of it was stored; it is safe to try again.",
  ];
  const what = `The blob store in ${path} failed while ${doing}: ${(thrown as Error).message}.`;
  return new OutliveError(ours, what, hint, { folder: path, errno: code, doing }, { cause: thrown });
}

export function folderMissing(path: string, cause?: unknown): OutliveError {
  return new OutliveError(
    ErrorCode.blobsMissing,
    `The folder ${path} of the blob store does not exist.`,
    "Create it, or mount the disk that it is on. Outlive creates the last folder of the path, once, and none above it.",
    { folder: path },
    { cause },
  );
}
