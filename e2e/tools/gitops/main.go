// Gitops-status says what GitOps tools make of objects: it reads a List, as `kubectl get -o json`
// and `-o yaml` print it, and prints one JSON line for each item.
//
//	gitops-status kstatus      by the rules of kstatus, which Flux and `kpt live` use
//	gitops-status argo SCRIPT  by a health script, run as Argo CD runs it
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"

	lua "github.com/yuin/gopher-lua"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
	"sigs.k8s.io/yaml"
)

type answer struct {
	Name    string `json:"name"`
	Status  string `json:"status"`
	Message string `json:"message"`
}

type judge func(*unstructured.Unstructured) (answer, error)

func main() {
	if err := run(os.Args[1:], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(arguments []string, in io.Reader, out io.Writer) error {
	of, err := chosen(arguments)
	if err != nil {
		return err
	}
	text, err := io.ReadAll(in)
	if err != nil {
		return err
	}
	asJSON, err := yaml.YAMLToJSON(text)
	if err != nil {
		return err
	}
	list := &unstructured.UnstructuredList{}
	if err := list.UnmarshalJSON(asJSON); err != nil { // keeps integers, as API clients do
		return err
	}
	encoder := json.NewEncoder(out)
	for i := range list.Items {
		found, err := of(&list.Items[i])
		if err != nil {
			return fmt.Errorf("%s: %w", list.Items[i].GetName(), err)
		}
		found.Name = list.Items[i].GetName()
		if err := encoder.Encode(found); err != nil {
			return err
		}
	}
	return nil
}

func chosen(arguments []string) (judge, error) {
	switch {
	case len(arguments) == 1 && arguments[0] == "kstatus":
		return kstatus, nil
	case len(arguments) == 2 && arguments[0] == "argo":
		script, err := os.ReadFile(arguments[1])
		return func(object *unstructured.Unstructured) (answer, error) {
			return argo(object, string(script))
		}, err
	}
	return nil, fmt.Errorf("usage: gitops-status kstatus | argo SCRIPT, with a List on standard input")
}

func kstatus(object *unstructured.Unstructured) (answer, error) {
	result, err := status.Compute(object)
	if err != nil {
		return answer{}, err
	}
	return answer{Status: result.Status.String(), Message: result.Message}, nil
}

// argo runs the script as Argo CD does one from argocd-cm: with the base, table and package
// libraries alone, `obj` as the only input, one second of time and a table as the answer. An object
// that is being deleted is Progressing, whatever the script says.
func argo(object *unstructured.Unstructured, script string) (answer, error) {
	if object.GetDeletionTimestamp() != nil {
		return answer{Status: "Progressing", Message: "Pending deletion"}, nil
	}
	state := lua.NewState(lua.Options{SkipOpenLibs: true})
	defer state.Close()
	for _, library := range []struct {
		name string
		open lua.LGFunction
	}{
		{lua.LoadLibName, lua.OpenPackage}, // first: the others register with it
		{lua.BaseLibName, lua.OpenBase},
		{lua.TabLibName, lua.OpenTable},
	} {
		call := lua.P{Fn: state.NewFunction(library.open), Protect: true}
		if err := state.CallByParam(call, lua.LString(library.name)); err != nil {
			return answer{}, err
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	state.SetContext(ctx)
	state.SetGlobal("obj", luaValue(state, object.Object))
	if err := state.DoString(script); err != nil {
		return answer{}, err
	}
	table, ok := state.Get(-1).(*lua.LTable)
	if !ok {
		return answer{}, fmt.Errorf("the script returns a %s, not a table", state.Get(-1).Type())
	}
	found := answer{Status: lua.LVAsString(table.RawGetString("status")),
		Message: lua.LVAsString(table.RawGetString("message"))}
	switch found.Status {
	case "Unknown", "Progressing", "Suspended", "Healthy", "Degraded", "Missing":
		return found, nil
	}
	return answer{}, fmt.Errorf("not a health status of Argo CD: %q", found.Status)
}

func luaValue(state *lua.LState, value any) lua.LValue {
	switch known := value.(type) {
	case bool:
		return lua.LBool(known)
	case string:
		return lua.LString(known)
	case int64:
		return lua.LNumber(known)
	case float64:
		return lua.LNumber(known)
	case []any:
		array := state.CreateTable(len(known), 0)
		for _, item := range known {
			array.Append(luaValue(state, item))
		}
		return array
	case map[string]any:
		table := state.CreateTable(0, len(known))
		for key, item := range known {
			table.RawSetString(key, luaValue(state, item))
		}
		return table
	}
	return lua.LNil
}
