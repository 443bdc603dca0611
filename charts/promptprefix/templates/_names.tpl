{{/* Names and labels. What other parts dial or look up by name is fixed; see the README. */}}

{{- define "promptprefix.selectorLabels" -}}
app.kubernetes.io/name: promptprefix
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
app.kubernetes.io/component: {{ .component }}
{{- with .router }}
promptprefix.dev/router: {{ . }}
{{- end }}
{{- end }}

{{/* The chart's own labels win, since selectors need them; then come those of the object (.more). */}}
{{- define "promptprefix.labels" -}}
{{- $own := include "promptprefix.ownLabels" . | fromYaml }}
{{- toYaml (merge $own (deepCopy (.more | default dict)) (deepCopy .root.Values.commonLabels)) }}
{{- end }}

{{- define "promptprefix.ownLabels" -}}
{{ include "promptprefix.selectorLabels" . }}
app.kubernetes.io/part-of: promptprefix
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end }}

{{/* The served namespaces, as a JSON list. */}}
{{- define "promptprefix.namespaces" -}}
{{- .Values.namespaces | default (list .Release.Namespace) | uniq | toJson -}}
{{- end }}

{{/* Whether gateways ask the pickers: "true", or nothing. */}}
{{- define "promptprefix.gateway" -}}
{{- if and .Values.router.enabled (eq .Values.router.mode "gateway") -}}true{{- end -}}
{{- end }}

{{/*
The routers, as a JSON list of {name, tenant, namespace}. An InferencePool names a Service of its own
namespace, which is the engines'.
*/}}
{{- define "promptprefix.routers" -}}
{{- $routers := list -}}
{{- if .Values.router.enabled -}}
  {{- $first := .Values.router.tenant | default (include "promptprefix.namespaces" . | fromJsonArray | first) -}}
  {{- $routers = append $routers (dict "name" "promptprefix-router" "tenant" $first) -}}
  {{- range .Values.router.additionalTenants -}}
    {{- if ne . $first -}}
      {{- $routers = append $routers (dict "name" (printf "promptprefix-router-%s" .) "tenant" .) -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- $gateway := include "promptprefix.gateway" . -}}
{{- range $routers -}}
  {{- $_ := set . "namespace" (eq $gateway "true" | ternary .tenant $.Release.Namespace) -}}
{{- end -}}
{{- $routers | toJson -}}
{{- end }}

{{/* The namespaces in which routers stand, as a JSON list. */}}
{{- define "promptprefix.routerNamespaces" -}}
{{- $namespaces := list -}}
{{- range include "promptprefix.routers" . | fromJsonArray -}}
  {{- $namespaces = append $namespaces .namespace -}}
{{- end -}}
{{- $namespaces | uniq | toJson -}}
{{- end }}

{{- define "promptprefix.image" -}}
{{- $name := .image.repository -}}
{{- with .image.registry }}{{- $name = printf "%s/%s" . $name -}}{{- end -}}
{{- if .image.digest -}}
{{- printf "%s@%s" $name .image.digest -}}
{{- else -}}
{{- printf "%s:%s" $name (.image.tag | default .root.Chart.AppVersion) -}}
{{- end -}}
{{- end }}

{{- define "promptprefix.controlUrl" -}}
{{- printf "https://promptprefix-operator.%s.svc:8443" .Release.Namespace -}}
{{- end }}

{{- define "promptprefix.webhookConfiguration" -}}
{{- printf "promptprefix-injector-%s" .Release.Namespace -}}
{{- end }}

{{/* Whether cert-manager keeps the webhook's certificate: "true", or nothing. */}}
{{- define "promptprefix.certManager" -}}
{{- $source := .Values.webhook.certificate.source -}}
{{- $present := .Capabilities.APIVersions.Has "cert-manager.io/v1" -}}
{{- if and .Values.webhook.enabled (or (eq $source "certManager") (and (eq $source "auto") $present)) -}}
true
{{- end -}}
{{- end }}

{{- define "promptprefix.priorityClass" -}}
{{- .Values.priorityClass.name | default (printf "promptprefix-%s" .Release.Namespace) -}}
{{- end }}

{{/* What no schema can say: values that must fit each other. */}}
{{- define "promptprefix.validate" -}}
{{- $served := include "promptprefix.namespaces" . | fromJsonArray -}}
{{- $list := join ", " $served -}}
{{- range $namespace, $_ := .Values.contentSecrets -}}
  {{- if not (has $namespace $served) -}}
    {{- fail (printf "contentSecrets.%s: not a served namespace; namespaces has: %s" $namespace $list) -}}
  {{- end -}}
{{- end -}}
{{- range $namespace, $_ := .Values.limits -}}
  {{- if not (or (eq $namespace "*") (has $namespace $served)) -}}
    {{- fail (printf "limits.%s: not a served namespace; namespaces has: %s" $namespace $list) -}}
  {{- end -}}
{{- end -}}
{{- with .Values.router.tenant -}}
  {{- if not (has . $served) -}}
    {{- fail (printf "router.tenant: %s is not a served namespace; namespaces has: %s" . $list) -}}
  {{- end -}}
{{- end -}}
{{- range .Values.router.additionalTenants -}}
  {{- if not (has . $served) -}}
    {{- fail (printf "router.additionalTenants: %s is not a served namespace; namespaces has: %s" . $list) -}}
  {{- end -}}
{{- end -}}
{{- if include "promptprefix.gateway" . -}}
  {{- $gateway := .Values.router.gateway -}}
  {{- if and $gateway.inferencePool.create (not $gateway.inferencePool.selector) -}}
    {{- fail "router.gateway.inferencePool.selector: give labels of the engines' pods, or set create: false" -}}
  {{- end -}}
  {{- if and (has $gateway.tls (list "files" "mutual")) (not $gateway.tlsSecret) -}}
    {{- fail (printf "router.gateway.tlsSecret: tls %s needs a Secret with tls.crt and tls.key" $gateway.tls) -}}
  {{- end -}}
{{- end -}}
{{- with .Values.test.namespace -}}
  {{- if not (has . $served) -}}
    {{- fail (printf "test.namespace: %s is not a served namespace; namespaces has: %s" . $list) -}}
  {{- end -}}
{{- end -}}
{{- if and .Values.test.model (not .Values.test.selector) -}}
  {{- fail "test.selector: give labels of the pods that serve test.model" -}}
{{- end -}}
{{- if gt (int .Values.router.autoscaling.minReplicas) (int .Values.router.autoscaling.maxReplicas) -}}
  {{- fail "router.autoscaling.maxReplicas: must be at least router.autoscaling.minReplicas" -}}
{{- end -}}
{{- end }}
