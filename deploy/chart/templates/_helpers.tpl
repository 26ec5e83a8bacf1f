{{/* An image: what .given does not say, .instead says, and after it the tag .tag. */}}
{{- define "gpu-turnstile.image" -}}
{{- $named := .instead -}}
{{- if or .given.tag .given.digest -}}{{- $named = .given -}}{{- end -}}
{{- $repository := .given.repository | default .instead.repository -}}
{{- if $named.digest -}}
{{ $repository }}@{{ $named.digest }}
{{- else -}}
{{ $repository }}:{{ $named.tag | default .tag }}
{{- end -}}
{{- end -}}

{{/* The cluster's version as kube-scheduler's images have it: without what providers add. */}}
{{- define "gpu-turnstile.kubernetes" -}}
{{- regexFind "^v[0-9]+\\.[0-9]+\\.[0-9]+" .Capabilities.KubeVersion.Version -}}
{{- end -}}

{{/* The variables of .given that are not in their places already: those of .own always are, those
     of .when under a condition. Some are decided by other values, or by references to the pod. */}}
{{- define "gpu-turnstile.env" -}}
{{- range $name, $value := .given }}
{{- if regexMatch "^(NODE_NAME|GPU_TURNSTILE_(DOMAIN|ENFORCEMENT|INJECT|[A-Z]+_(NAMESPACE|ADDRESS|REPLICAS)))$" $name }}
{{- fail (printf "%s.env.%s: Forbidden: other values of the chart, or the pod, decide it" $.workload $name) }}
{{- end }}
{{- if not (or (has $name $.own) (get $.when $name)) }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- end }}
{{- end -}}
