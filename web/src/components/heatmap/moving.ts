// Which part of a heat map is shown and which cell is meant: by pointer, wheel and keys.
import type { RefObject } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { clampView, type Matrix, type View, zoomed } from "../../lib/matrix";
import type { Cell, Frame } from "./drawing";

const WHOLE: View = { x: 0, y: 0, zoom: 1 };
const ARROWS: Record<string, [number, number]> = {
  ArrowUp: [-1, 0],
  ArrowDown: [1, 0],
  ArrowLeft: [0, -1],
  ArrowRight: [0, 1],
};

interface Point {
  clientX: number;
  clientY: number;
}

export interface Moving {
  view: View;
  cell: Cell | null;
  zoom: (factor: number) => void;
  whole: () => void;
  handlers: {
    onPointerDown: (event: PointerEvent) => void;
    onPointerMove: (event: PointerEvent) => void;
    onPointerUp: (event: PointerEvent) => void;
    onPointerLeave: () => void;
    onKeyDown: (event: KeyboardEvent) => void;
  };
}

export function useMoving(
  canvas: RefObject<HTMLCanvasElement | null>,
  matrix: Matrix,
  frame: Frame,
  onPick?: (row: number, column: number) => void,
): Moving {
  const [view, setView] = useState<View>(WHOLE);
  const [cell, setCell] = useState<Cell | null>(null);
  useEffect(() => {
    setView(WHOLE);
    setCell(null);
  }, [matrix]);
  const share = (event: Point): [number, number] => {
    const box = canvas.current?.getBoundingClientRect();
    return box
      ? [(event.clientX - box.left - frame.edge.left) / frame.w, (event.clientY - box.top) / frame.h]
      : [-1, -1];
  };
  const zoom = (factor: number, x = 0.5, y = 0.5) => setView((old) => zoomed(old, factor, x, y, matrix));
  useWheel(canvas, (event) => zoom(Math.exp(-event.deltaY * 0.0022), ...share(event)));
  const pointer = useDrag(canvas, frame, view, setView, (event) => cellAt(share(event), view, matrix), setCell, onPick);
  const onKeyDown = (event: KeyboardEvent) => {
    const by = ARROWS[event.key];
    if (event.key === "+" || event.key === "=") zoom(1.5);
    else if (event.key === "-") zoom(1 / 1.5);
    else if (event.key === "0") setView(WHOLE);
    else if (event.key === "Enter" && cell) onPick?.(cell.row, cell.column);
    else if (event.key === "Escape") setCell(null);
    else if (by) {
      const next = stepped(cell ?? { row: matrix.rows - 1, column: 0 }, by, event.shiftKey ? 10 : 1, matrix);
      setCell(next);
      setView((old) => follow(old, next.row / matrix.rows, next.column / matrix.columns));
    } else return;
    event.preventDefault();
  };
  return { view, cell, zoom, whole: () => setView(WHOLE), handlers: { ...pointer, onKeyDown } };
}

/** A wheel over the picture scrolls the page, unless the reader is at work in the picture or asks for zoom. */
function useWheel(canvas: RefObject<HTMLCanvasElement | null>, turn: (event: WheelEvent) => void): void {
  useEffect(() => {
    const element = canvas.current;
    const wheel = (event: WheelEvent) => {
      if (!event.ctrlKey && document.activeElement !== element) return;
      event.preventDefault();
      turn(event);
    };
    element?.addEventListener("wheel", wheel, { passive: false });
    return () => element?.removeEventListener("wheel", wheel);
  });
}

/** Dragging moves what is shown; a press that does not move chooses. */
function useDrag(
  canvas: RefObject<HTMLCanvasElement | null>,
  frame: Frame,
  view: View,
  setView: (view: View) => void,
  at: (event: Point) => Cell | null,
  setCell: (cell: Cell | null) => void,
  onPick?: (row: number, column: number) => void,
) {
  const drag = useRef<{ id: number; x: number; y: number; view: View; moved: boolean } | null>(null);
  return {
    onPointerDown: (event: PointerEvent) => {
      drag.current = { id: event.pointerId, x: event.clientX, y: event.clientY, view, moved: false };
      setCell(at(event));
    },
    onPointerMove: (event: PointerEvent) => {
      const held = drag.current;
      if (!held || view.zoom <= 1 || !event.buttons) return setCell(at(event));
      const [dx, dy] = [event.clientX - held.x, event.clientY - held.y];
      if (Math.abs(dx) + Math.abs(dy) > 4 && !held.moved) {
        held.moved = true;
        canvas.current?.setPointerCapture(held.id);
      }
      if (!held.moved) return setCell(at(event));
      setView(
        clampView({
          ...held.view,
          x: held.view.x - dx / frame.w / view.zoom,
          y: held.view.y - dy / frame.h / view.zoom,
        }),
      );
    },
    onPointerUp: (event: PointerEvent) => {
      const found = at(event);
      if (drag.current && !drag.current.moved && found) onPick?.(found.row, found.column);
      drag.current = null;
    },
    onPointerLeave: () => {
      drag.current = null;
      setCell(null);
    },
  };
}

function cellAt([x, y]: [number, number], view: View, matrix: Matrix): Cell | null {
  if (x < 0 || x >= 1 || y < 0 || y >= 1) return null;
  const column = Math.floor((view.x + x / view.zoom) * matrix.columns);
  const row = Math.floor((view.y + y / view.zoom) * matrix.rows);
  return column < matrix.columns && row < matrix.rows ? { row, column } : null;
}

function stepped(from: Cell, [down, right]: [number, number], stride: number, matrix: Matrix): Cell {
  return {
    row: Math.min(matrix.rows - 1, Math.max(0, from.row + down * stride)),
    column: Math.min(matrix.columns - 1, Math.max(0, from.column + right * stride)),
  };
}

function follow(view: View, row: number, column: number): View {
  const size = 1 / view.zoom;
  let { x, y } = view;
  if (column < x || column > x + size * 0.98) x = column - size / 2;
  if (row < y || row > y + size * 0.98) y = row - size / 2;
  return clampView({ ...view, x, y });
}
